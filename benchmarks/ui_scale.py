"""The app on 100 000 stored tensors over 160 sparse shards: first screen, page down, filter, memory.

python benchmarks/ui_scale.py make FOLDER     write the checkpoint: 700 GB apparent, a few MB of disk
python benchmarks/ui_scale.py run FOLDER      measure the app on it
python benchmarks/ui_scale.py compare         the table against DataTable, for the ratio
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

SHARDS = 160
MODULES = 25_000
EXTENT = 7168
GROUP = 128
PROJECTIONS = ("gate_proj", "up_proj", "down_proj", "q_proj", "o_proj")
ROWS_COMPARED = (10_000, 100_000)


def module_names() -> list[str]:
    """Names as a mixture of experts has them."""
    per_layer = MODULES // 50
    return [
        f"model.layers.{i // per_layer}.mlp.experts.{i % per_layer // 5}.{PROJECTIONS[i % 5]}"
        for i in range(MODULES)
    ]


def planes() -> dict[str, tuple[str, list[int], int]]:
    """Suffix to (dtype, shape, bytes) of a 4-bit GPTQ module."""
    groups = EXTENT // GROUP
    return {
        "qweight": ("I32", [EXTENT // 8, EXTENT], EXTENT // 8 * EXTENT * 4),
        "qzeros": ("I32", [groups, EXTENT // 8], groups * EXTENT // 8 * 4),
        "scales": ("F16", [groups, EXTENT], groups * EXTENT * 2),
        "g_idx": ("I32", [EXTENT], EXTENT * 4),
    }


def make(folder: Path) -> None:
    """Headers are written, data is a hole."""
    folder.mkdir(parents=True, exist_ok=True)
    names, kinds = module_names(), planes()
    index: dict[str, str] = {}
    apparent = 0
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        header: dict[str, Any] = {}
        offset = 0
        for name in names[shard * MODULES // SHARDS : (shard + 1) * MODULES // SHARDS]:
            for suffix, (dtype, shape, nbytes) in kinds.items():
                header[f"{name}.{suffix}"] = {
                    "dtype": dtype,
                    "shape": shape,
                    "data_offsets": [offset, offset + nbytes],
                }
                index[f"{name}.{suffix}"] = file
                offset += nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + offset)
        apparent += 8 + len(text) + offset
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": apparent}, "weight_map": index})
    )
    config = {
        "model_type": "llama",
        "quantization_config": {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "desc_act": False,
            "sym": False,
            "checkpoint_format": "gptq_v2",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    print(f"{len(index)} stored tensors in {SHARDS} shards, {apparent / 1e9:.0f} GB apparent")


def rss_mb() -> float:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1000
    return 0.0


class LoopWatch:
    """The longest time between two turns of the event loop, in wall and in CPU seconds of its thread."""

    def __init__(self) -> None:
        self.worst_wall = 0.0
        self.worst_cpu = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.005)
            self.worst_wall = max(self.worst_wall, time.perf_counter() - wall - 0.005)
            self.worst_cpu = max(self.worst_cpu, time.thread_time() - cpu)


async def painted(widget: Any) -> None:
    """Wait until what was asked for is on the screen."""
    done = asyncio.Event()
    widget.call_after_refresh(done.set)
    await done.wait()


async def measure(folder: Path, started: float) -> None:
    """Open, page down, filter, tree."""
    from quantscope_views.app import QuantscopeApp
    from quantscope_views.screens.tensors import FilterBox
    from quantscope_views.widgets.virtual_table import VirtualTable
    from textual import events

    app = QuantscopeApp(str(folder), restore=False)
    async with app.run_test(size=(120, 40)):
        watch = LoopWatch()
        ticker = asyncio.create_task(watch.run())
        print(f"first paint                {time.perf_counter() - started:6.2f} s")
        while app.workspace.overview is None:
            await asyncio.sleep(0.005)
        await painted(app.screen)
        print(
            f"first screen with headers  {time.perf_counter() - started:6.2f} s  RSS {rss_mb():.0f} MB"
        )
        while app.workspace.table is None:
            await asyncio.sleep(0.005)
        await painted(app.screen)
        print(
            f"all tensors listed         {time.perf_counter() - started:6.2f} s  RSS {rss_mb():.0f} MB"
        )
        app.action_show_tensors()
        await painted(app.screen)
        table = app.screen.query_one(VirtualTable)
        times = []
        for _ in range(40):
            before = time.perf_counter()
            app.post_message(events.Key("pagedown", None))
            await painted(table)
            times.append(time.perf_counter() - before)
        print(f"page down                  {_stats(times)}")
        app.action_filter()
        box = app.screen.query_one(FilterBox)
        times = []
        for text in ("e", "ex", "exp", "expe", "experts.4", "experts.42", "experts.42."):
            before = time.perf_counter()
            app.bridge.touch()
            box.value = text
            await painted(table)
            times.append(time.perf_counter() - before)
        print(f"a key of the filter        {_stats(times)}")
        while app.workspace.stage == "opening" and time.perf_counter() - started < 120:
            await asyncio.sleep(0.05)
        print(
            f"findings from headers      {time.perf_counter() - started:6.2f} s  RSS {rss_mb():.0f} MB"
        )
        await asyncio.sleep(5)
        print(
            f"5 s of reading bytes later RSS {rss_mb():.0f} MB, {app.workspace.table.examined} examined"
        )
        ticker.cancel()
        print(
            f"longest turn of the loop   {watch.worst_wall * 1e3:.0f} ms wall, "
            f"{watch.worst_cpu * 1e3:.0f} ms of its own CPU"
        )
        before = time.perf_counter()
        app.bridge.stop_all()
        app.exit()
    print(f"exit                       {time.perf_counter() - before:6.2f} s")


def _stats(times: list[float]) -> str:
    ordered = sorted(times)
    return f"median {ordered[len(ordered) // 2] * 1e3:5.1f} ms, worst {ordered[-1] * 1e3:5.1f} ms"


async def compare_tables() -> None:
    """First paint and page down of DataTable and of our table on the same rows."""
    from quantscope_views.present.tensor_rows import COLUMNS, FlatRows
    from quantscope_views.present.tensor_table import RowFacts, TensorTable
    from quantscope_views.widgets.virtual_table import VirtualTable
    from textual.app import App, ComposeResult
    from textual.widgets import DataTable

    def rows(count: int) -> list[RowFacts]:
        return [
            RowFacts(
                name=f"model.layers.{i // 100}.mlp.experts.{i % 100}.w",
                word="gptq",
                shape=(1, 1),
                nbytes=i,
            )
            for i in range(count)
        ]

    class Data(App[None]):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def compose(self) -> ComposeResult:
            yield DataTable()

        def on_mount(self) -> None:
            table = self.query_one(DataTable)
            table.add_columns(*(column.title for column in COLUMNS))
            for row in rows(self.count):
                table.add_row(row.name, "int4", "[1, 1]", "gptq", "4.0", "1 B", "abcd", "agrees")

    class Ours(App[None]):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def get_theme_variable_defaults(self) -> dict[str, str]:
            from quantscope_views.themes import DEFAULT_TONES

            return DEFAULT_TONES

        def compose(self) -> ComposeResult:
            yield VirtualTable(COLUMNS)

        def on_mount(self) -> None:
            table = TensorTable(rows(self.count))
            self.query_one(VirtualTable).show(FlatRows(table, table.matching(""), False))

    for count in ROWS_COMPARED:
        taken = []
        for kind in (Data, Ours):
            before = time.perf_counter()
            app = kind(count)
            async with app.run_test(size=(120, 40)) as pilot:
                await pilot.pause()
                taken.append(time.perf_counter() - before)
        print(
            f"{count:7d} rows: DataTable {taken[0]:.2f} s, ours {taken[1]:.2f} s, "
            f"ratio {taken[0] / taken[1]:.0f}"
        )


def main() -> None:
    """Run what the command line names."""
    started = time.perf_counter()
    words = sys.argv[1:]
    if words[:1] == ["make"] and len(words) == 2:
        make(Path(words[1]))
    elif words[:1] == ["run"] and len(words) == 2:
        asyncio.run(measure(Path(words[1]), started))
    elif words == ["compare"]:
        asyncio.run(compare_tables())
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
