"""Judges the main job's last line: a short table for a person, then that line alone.

    main_job_result.py ENGINE EXIT_STATUS < output-of-the-main-job
"""

import json
import sys


def faults(result, engine, exit_status):
    """Why the job did not do what it is for; empty if it did."""
    found = []
    if exit_status != 0:
        found.append(f"the job ended with exit status {exit_status}")
    for name in ("restored_tokens", "restored_bytes"):
        if not result.get(name, 0) > 0:
            found.append(f"{name} is {result.get(name)}: nothing was restored")
    if result.get("wrong_bytes") != 0:
        found.append(f"wrong_bytes is {result.get('wrong_bytes')}")
    # The example engine computes no tokens.
    if result.get("tokens_equal") is not (None if engine == "native" else True):
        found.append(f"tokens_equal is {result.get('tokens_equal')}")
    return found


def parse_last_line(output):
    lines = output.strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def table(result, engine):
    seconds = result.get("seconds") or {}
    equal = {True: "yes", False: "NO", None: "(computes none)"}[result.get("tokens_equal")]
    rows = [
        ("engine", f"{engine}, killed with SIGKILL after publishing; a new process restored"),
        ("tokens restored", result.get("restored_tokens")),
        ("bytes restored", result.get("restored_bytes")),
        ("wrong bytes", result.get("wrong_bytes")),
        ("same tokens generated", equal),
        ("seconds, cold | restored", f"{seconds.get('cold')} | {seconds.get('restored')}"),
    ]
    return "\n".join(f"  {name:<26}{value}" for name, value in rows)


def main():
    engine, exit_status = sys.argv[1], int(sys.argv[2])
    output = sys.stdin.read()
    result = parse_last_line(output)
    if result is None:
        print(output, end="")
        print(f"quickstart: the main job left no result (exit status {exit_status}); its log is above", file=sys.stderr)
        sys.exit(1)
    found = faults(result, engine, exit_status)
    print(f"\n{table(result, engine)}\n", flush=True)
    for fault in found:
        print(f"quickstart: NOT WELL: {fault}", file=sys.stderr, flush=True)
    print(output.strip().splitlines()[-1])
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
