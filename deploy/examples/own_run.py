#!/usr/bin/env python3
"""A training of one's own as a run of polyd, with the standard library alone.

    own_run.py [http://127.0.0.1:7070]

Fits y = a x + b by gradient descent. Points and log lines count as signs of life; a program that is silent for long
between two of them sends POST /api/v1/runs/ID/heartbeat now and then.
"""
import json
import random
import sys
import urllib.error
import urllib.request
import uuid

URL = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7070").rstrip("/") + "/api/v1"


def post(path, body, **headers):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:  # polyd says what is wrong in a sentence
        sys.exit(f"{path}: {json.load(error)['detail']}")


def main():
    config = {"lr": 0.1, "steps": 200, "seed": 7}
    # With a key of its own the request may be sent again: one run comes of it.
    run = post("/runs", {"name": "line by hand", "experiment": "own runs", "tags": {"language": "python"},
                         "config": config, "total_steps": config["steps"]},
               **{"Idempotency-Key": str(uuid.uuid4())})["id"]
    random.seed(config["seed"])
    data = [(x, 3 * x - 1 + random.gauss(0, 0.1)) for x in (random.uniform(-1, 1) for _ in range(100))]
    a = b = 0.0
    points = []
    try:
        for step in range(1, config["steps"] + 1):
            errors = [(a * x + b - y, x) for x, y in data]
            loss = sum(e * e for e, _ in errors) / len(errors)
            a -= config["lr"] * 2 * sum(e * x for e, x in errors) / len(errors)
            b -= config["lr"] * 2 * sum(e for e, _ in errors) / len(errors)
            points.append({"key": "loss/train", "step": step, "value": loss})
            if step % 50 == 0:  # in batches: each is one commit
                post(f"/runs/{run}/metrics", {"points": points})
                post(f"/runs/{run}/logs", {"text": f"step {step}: loss {loss:.4f}\n"})
                points = []
    except Exception as error:
        post(f"/runs/{run}/finish", {"outcome": "failed", "reason": str(error)[:500]})
        raise
    post(f"/runs/{run}/finish", {"outcome": "succeeded", "reason": f"y = {a:.2f} x {b:+.2f}"})
    print(f"run {run}: loss {loss:.4f}, y = {a:.2f} x {b:+.2f}")


main()
