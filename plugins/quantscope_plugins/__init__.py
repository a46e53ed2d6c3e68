"""Format families and kernels that ship with quantscope, registered as a third party's are."""
