"""What the benches of a GPU should reach: rows for the table of scripts/gpu-check.

A row is {"what", "found", "bar", "met"}; ratios are of the ceiling of the same run. Lines
without a bar give no row.
"""

KIB = 1024
LARGE_FROM = 16 * KIB
# Fragment size -> (share of one DMA, most thread blocks).
LINK_SHARE = {2 * KIB: (0.90, 24), 4 * KIB: (0.91, 16)}
LARGE_SHARE = (0.92, 4)
BOTH_SHARE = 0.90
MICROSECONDS = {
    ("restore", "4KiB"): 20,
    ("restore", "36x128x4KiB_split"): 550,
    ("publish", "4KiB"): 30,
    ("publish", "36x128x4KiB_split"): 600,
}
PLAN_BYTES = 8 * KIB
FIRST_LAYER_SHARE = 0.10
CONSUMER_OVER = 0.05
ATTACH_S = 1
VERIFY_COST = 0.01
GEMM_CHANGE = {("large", "full"): 4, ("decode", "full"): 8, ("large", "gentle"): 2, ("decode", "gentle"): 2}
GENTLE_RATE = {16 * KIB: 12, 64 * KIB: 28}


def row(what, found, bar, met):
    return {"what": what, "found": found, "bar": bar, "met": bool(met)}


def at_least(what, found, bar):
    return row(what, found, f">= {bar}", found >= bar)


def at_most(what, found, bar):
    return row(what, found, f"<= {bar}", found <= bar)


def size_of(text):
    """"16KiB" in bytes."""
    number = int(text[:-3])
    return number * KIB * (KIB if text.endswith("MiB") else 1)


def copy_rows(lines):
    by_name = {line["case"]: line for line in lines}
    for name, line in by_name.items():
        way, fragment, *rest = name.split("_")
        method = rest[-2]
        if fragment.startswith("36x"):
            if way == "h2d" and method == "auto":
                yield at_most(f"copy {name}: bytes of plan", line["plan_bytes"], PLAN_BYTES)
            continue
        if method != "auto":
            continue
        size = size_of(fragment)
        share, ctas = LINK_SHARE.get(size, LARGE_SHARE)
        if way == "both":
            yield at_least(f"copy {name}: of both DMAs", line["ratio"], BOTH_SHARE)
            continue
        yield at_least(f"copy {name}: of one DMA", line["ratio"], share)
        if "window" in line:
            yield at_most(f"copy {name}: thread blocks", line["window"]["ctas"], ctas)
        other = by_name.get(name.replace("_auto_", "_unverified_"))
        if other:
            cost = round(1 - line["gb_per_s"] / other["gb_per_s"], 4)
            yield at_most(f"copy {name}: cost of comparing sums", cost, VERIFY_COST)


def transfer_rows(lines):
    for line in lines:
        bench, name = line["bench"], line["case"]
        if (bench, name) in MICROSECONDS:
            yield at_most(f"{bench} {name}: us, p50", line["p50_us"], MICROSECONDS[bench, name])
        if "first_layer_share" in line:
            yield at_most(f"{bench} {name}: first layer's share", line["first_layer_share"], FIRST_LAYER_SHARE)
        if "over" in line:
            yield at_most(f"{bench} {name}: over max(copy, compute)", line["over"], CONSUMER_OVER)
        if name.startswith("attach_"):
            yield at_most(f"{bench} {name}: seconds to a restore", line["seconds"], ATTACH_S)


def interference_rows(lines):
    for line in lines:
        if "table" in line or line["method"] != "auto":
            continue
        what = "interference {fragment} {pace} {copies}, {gemm} GEMM".format(**line)
        yield at_most(f"{what}: %", line["gemm_change_percent"], GEMM_CHANGE[line["gemm"], line["pace"]])
        if line["pace"] == "gentle" and line["copies"] != "both" and line["fragment"] in GENTLE_RATE:
            yield at_least(f"{what}: GB/s", line["copy_gb_per_s"], GENTLE_RATE[line["fragment"]])


def rows_of(step, lines):
    kinds = {"copy": copy_rows, "restore": transfer_rows, "publish": transfer_rows, "interference": interference_rows}
    return list(kinds[step](lines)) if step in kinds else []
