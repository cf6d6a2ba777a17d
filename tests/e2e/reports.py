"""Reading an engine's report (engine_run.py)."""


def tokens(report, run=0):
    return [output["tokens"] for output in report["runs"][run]["outputs"]]


def cached(report, run=0):
    return [output["cached"] for output in report["runs"][run]["outputs"]]
