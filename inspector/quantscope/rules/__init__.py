"""Rules: what is wrong, where, what it does, who can act. One class a rule, one file a code prefix."""
