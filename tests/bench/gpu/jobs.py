"""Jobs through a real polyd on a GPU: from accepted to the end of the first step, the rate with a real data
pipeline, and scaling over GPUs. Needs no PyTorch.

    python3 tests/bench/gpu/jobs.py --inputs DIR [--out FILE] [--seconds N] [--flag=FLAG ...] [--dry]

DIR holds mnist/ and text.txt (tests/gpu/prepare); without them the jobs run on digits and text that polyd makes, and their
rows have "data": "generated". --flag is passed on to polyd. --dry: tiny jobs.
"""
import argparse
import atexit
import datetime
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("POLYD_BUILD", "build/gpu")
LEFT_OUT = 75  # as in common.py, which needs PyTorch


class Daemon:
    """A polyd of our own; its workers end with it. inputs: a folder of data, or None."""

    def __init__(self, inputs, flags):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.state = tempfile.mkdtemp(prefix="jobs.", dir=os.path.abspath(BUILD))
        self.log = open(os.path.join(self.state, "polyd.log"), "w")
        self.jobs = []
        self.process = subprocess.Popen([os.path.join(BUILD, "bin", "polyd"), f"--port={self.port}", f"--state-dir={self.state}",
                                         *([f"--data.sets={os.path.abspath(inputs)}"] if inputs else []), *flags],
                                        stdout=self.log, stderr=self.log)
        atexit.register(self.stop)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                if self.call("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("polyd did not start:\n" + open(self.log.name).read()[-2000:])

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            r = c.getresponse()
            data = r.read()
            return r.status, json.loads(data) if data[:1] in (b"{", b"[") else {}
        finally:
            c.close()

    def submit(self, job):
        status, made = self.call("POST", "/api/v1/jobs", job)
        if status != 201:
            raise RuntimeError(f"{job['name']} was refused: {json.dumps(made)[:400]}")
        self.jobs.append(made["id"])
        return made["id"]

    def run_of(self, job):
        runs = self.call("GET", f"/api/v1/runs?job={job}&limit=1")[1].get("runs", [])
        return runs[0] if runs else None

    def series(self, run, key):
        status, body = self.call("GET", f"/api/v1/runs/{run}/series?key={key}&buckets=400")
        return body["series"][0]["data"] if status == 200 and body.get("series") else []

    def finish(self, job, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            run = self.run_of(job)
            if run and run["state"] == "ended":
                if run["outcome"] != "succeeded":
                    raise RuntimeError(f"job {job} {run['outcome']}: {run.get('reason')}")
                return run
            time.sleep(0.05)
        raise RuntimeError(f"job {job} took more than {seconds:.0f} s")

    def stop(self):
        if self.process.poll() is not None:
            return
        # Workers outlive their daemon, so that it may be replaced: what runs is cancelled before it goes.
        for job in self.jobs:
            try:
                self.call("POST", f"/api/v1/jobs/{job}/cancel", {})
            except OSError:
                pass
        until = time.monotonic() + 15
        while time.monotonic() < until:
            try:
                if not self.call("GET", "/api/v1/runs?state=active")[1].get("runs"):
                    break
            except OSError:
                break
            time.sleep(0.1)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


DIGITS = {"dataset": "mnist", "path": "sets/mnist"}
TEXT = {"dataset": "text", "path": "sets/text.txt", "tokenizer": "bytes", "split": {"rule": "fraction", "train": 0.9, "val": 0.01}}


def vit(name, steps, preset, extra, **resources):
    return {"name": name, "model": {"preset": preset, "patch": 7, **extra}, "attention": {"activation": "poly", "degree": 3, "scale": "fixed"},
            "data": dict(DIGITS), "diagnostics": {"every": 0},
            "train": {"steps": steps, "batch": 256, "precision": "bf16", "eval_every": steps, "optimizer": {"name": "adamw", "lr": 1e-3}},
            "resources": {"device": "cuda", **resources}}


def gpt(name, steps, model, batch, **resources):
    return {"name": name, "model": model, "attention": {"activation": "poly", "degree": 3, "scale": "fixed"},
            "data": dict(TEXT), "diagnostics": {"every": 0}, "train": {"steps": steps, "batch": batch, "precision": "bf16", "eval_every": steps,
                                                  "optimizer": {"name": "adamw", "lr": 1e-4}},
            "resources": {"device": "cuda", **resources}}


def median(values):
    values = sorted(values)
    return values[len(values) // 2] if values else float("nan")


def measure_first_step(d, add, job, label):
    began = time.time()
    made = d.submit(job)
    accepted = time.time()
    run = d.finish(made, 300)
    # The point of step 1 carries the time at which the step had ended.
    first = d.series(run["id"], "loss/train")[0]["first_time"]
    first = datetime.datetime.fromisoformat(first.replace("Z", "+00:00")).timestamp()
    add(kind="first-step", name=label, accepted_s=accepted - began, first_step_s=first - accepted, whole_s=time.time() - began)


def measure_rate(d, add, job, label, seconds, gpus=1):
    run = d.finish(d.submit(job), seconds)
    step = [p["mean"] for p in d.series(run["id"], "step_ms")]
    wait = [p["mean"] for p in d.series(run["id"], "data_wait")]
    rate = [p["mean"] for key in ("tokens_per_s", "samples_per_s") for p in d.series(run["id"], key)]
    # The first points have recording and the measuring of products in them.
    late = lambda v: v[len(v) // 3:]
    add(kind="job", name=label, gpus=gpus, step_ms=median(late(step)), rate=median(late(rate)), data_wait=median(late(wait)), points=len(step))
    return median(late(rate))


def count_gpus():
    try:
        out = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout
        return out.count("GPU ")
    except (OSError, subprocess.TimeoutExpired):
        return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--flag", action="append", default=[])
    parser.add_argument("--dry", action="store_true")
    o = parser.parse_args()
    out = open(o.out, "a") if o.out else None
    until = time.monotonic() + o.seconds
    failed = left = 0

    given = os.path.isdir(os.path.join(o.inputs, "mnist"))
    if not given:
        for data, name in ((DIGITS, "digits_gen"), (TEXT, "text_gen")):
            data.clear()
            data["dataset"] = name

    def add(**row):
        row = {**row, **({} if given else {"data": "generated"}), "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), **({"dry": True} if o.dry else {})}
        if out:
            out.write(json.dumps(row) + "\n")
            out.flush()
        print("  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that atexit ends the daemon
    d = Daemon(o.inputs if given else None, o.flag)
    small = {"preset": "vit_micro", "extra": {"width": 16, "depth": 1, "heads": 1, "patch": 14}} if o.dry else \
        {"preset": "vit_small", "extra": {}}
    words = {"preset": "gpt_micro", "width": 32, "depth": 1, "heads": 2, "context": 32} if o.dry else \
        {"preset": "gpt_nano", "width": 768, "depth": 12, "heads": 12, "context": 1024}
    steps = 4 if o.dry else 300

    def small_job(name, steps, **resources):
        job = vit(name, steps, small["preset"], small["extra"], **resources)
        if o.dry:
            job["data"]["split"] = {"rule": "count", "train": 64, "val": 16}
            job["train"]["batch"] = 4
        return job

    def word_job(name, batch, **resources):
        return gpt(name, steps, words, 2 if o.dry else batch, **resources)

    gpus = count_gpus()
    parts = [("first step, nothing known of this GPU", lambda: measure_first_step(d, add, small_job("first", 4), "vit_small, first job of a GPU")),
             ("first step, again", lambda: measure_first_step(d, add, small_job("again", 4), "vit_small, again")),
             ("first step of GPT-2 124M", lambda: measure_first_step(d, add, {**word_job("gpt2", 16), "train": {**word_job("gpt2", 16)["train"], "steps": 2, "eval_every": 2}}, "gpt2 124M on bytes")),
             ("rate of vit_small", lambda: measure_rate(d, add, small_job("rate", steps), "vit_small on mnist, batch 256", 120)),
             ("rate of gpt2", lambda: measure_rate(d, add, word_job("rate-gpt2", 16), "gpt2 124M on bytes, batch 16", 120))]
    if gpus >= 2:
        def scaling():
            one = measure_rate(d, add, word_job("one", 16), "gpt2 124M, 1 GPU", 120)
            two = measure_rate(d, add, word_job("two", 32, gpus=2), "gpt2 124M, 2 GPUs", 120, gpus=2)
            add(kind="scaling", gpus=2, efficiency=two / one / 2)
        parts.append(("scaling over 2 GPUs", scaling))
    else:
        add(kind="left-out", what="scaling over 2 GPUs: this machine has one")
    for what, run in parts:
        if time.monotonic() > until:
            left += 1
            add(kind="left-out", what=f"jobs: {what}: no time")
            continue
        try:
            run()
        except Exception as e:
            failed += 1
            add(kind="failed", what=f"jobs: {what}", why=str(e)[:300])
    d.stop()
    sys.exit(1 if failed else LEFT_OUT if left else 0)


main()
