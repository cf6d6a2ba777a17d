"""What a forked engine does besides generating: aborts, step times, many passes."""

import time

import engine_run


def add(llm, number, prompt, max_tokens):
    name = f"request-{number}"
    llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, engine_run.sampling(max_tokens))
    return name


def run_to_end(llm):
    finished = {}
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            if output.finished:
                finished[output.request_id] = engine_run.describe(output)
    return finished


def aborting(llm, job):
    """Aborts request i after job["aborts"][i] steps (None: not at all)."""
    names = [add(llm, i, p, job["max_tokens"]) for i, p in enumerate(job["prompts"])]
    finished = {}
    for step in range(max(a for a in job["aborts"] if a is not None) + 1):
        gone = [name for name, after in zip(names, job["aborts"], strict=False) if after == step]
        if gone:
            llm.llm_engine.abort_request(gone)
        for output in llm.llm_engine.step():
            if output.finished:
                finished[output.request_id] = engine_run.describe(output)
    finished.update(run_to_end(llm))
    settled = engine_run.settle(llm)
    return {"finished": finished, "settled": settled, "reset": llm.reset_prefix_cache()}


def paired_steps(llm, job):
    """Step times with and without publishing, alternating, each pair with prompts of its
    own and in changing order."""
    from dump_connector import DumpConnector

    side = next(c._scheduler for c in DumpConnector.instances if c._scheduler)
    pairs = []
    for number in range(job["pairs"] + 1):
        pair = {}
        for publishing in (True, False) if number % 2 else (False, True):
            side._write = publishing
            prompts = engine_run.prompts(3, job["length"], seed=1000 + 2 * number + publishing)
            for i, prompt in enumerate(prompts):
                add(llm, f"{number}-{publishing}-{i}", prompt, job["max_tokens"])
            times = []
            while llm.llm_engine.has_unfinished_requests():
                start = time.perf_counter()
                llm.llm_engine.step()
                times.append(time.perf_counter() - start)
            pair["on" if publishing else "off"] = times
            engine_run.settle(llm)
            llm.reset_prefix_cache()
        pairs.append(pair)
    return {"pairs": pairs[1:]}  # the first warms up


JOBS = {"generate": engine_run.run_job, "aborting": aborting, "paired_steps": paired_steps}
