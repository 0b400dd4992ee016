"""Prints results, given as lines of JSON, as a table: `tables.py ring | several | step | longest | tflops FILE`; `tables.py peak | nccl
FILE`: of what `annulus doctor --json` says, the data sheet's TFLOP/s of the first GPU, or NCCL's version; nothing where it is unknown."""

import json
import re
import sys


def name(line):
    if "peer" in line:
        return f"{line['peer']}, logits {line['logits']}"
    offload = line.get("offload", "none")
    more = [("same bits", line.get("deterministic")), (f"{offload} offloaded", offload != "none")]
    more.append((f"chunks of {line.get('loss_chunk')} and {line.get('mlp_chunk')}", line.get("planned_chunks")))
    return ", ".join(["annulus"] + [what for what, is_so in more if is_so])


def percent(line, index):
    shares = line.get("mfu", [])
    return f"{100 * shares[index]:.1f} %" if index < len(shares) else ""


def ring(lines):
    print(f"{'dtype':<6} {'tokens':>7} {'ranks':>5} {'seconds':>8} {'of one':>8} {'times':>6} {'losses apart':>12}  losses")
    for line in (line for line in lines if "cost" in line):
        print(f"{line['dtype']:<6} {line['tokens']:>7} {line['ranks']:>5} {line['median_s']:>8.3f} {line['their_median_s']:>8.3f} "
              f"{line['cost']:>6.3f} {line['losses_apart']:>12.1e}  {line['losses']}")


def several(lines):
    for line in lines:
        other = [way["way"] for way in line["ways"] if not (way["losses"] and way["first_step"] and way["last_step"])]
        print(f"{line['equal']} of {line['of']} ways have the bits of threads" + "".join(f"; other bits: {way}" for way in other))


def step(lines):
    peaks = next((line["peak_tflops"] for line in lines if "peak_tflops" in line), [])
    heads = [f"of {peak:.0f}" for peak in peaks]
    print(f"{'':<36} {'tokens':>7} {'seconds':>8} {'tokens/s':>9} {'TFLOP/s':>8} " + " ".join(f"{head:>8}" for head in heads) + " GPU MiB")
    for line in lines:
        if "median_s" not in line:
            print(f"{name(line):<36} {line['tokens']:>7} no step: {line.get('why', '')}")
            continue
        shares = " ".join(f"{percent(line, index):>8}" for index in range(len(peaks)))
        print(f"{name(line):<36} {line['tokens']:>7} {line['median_s']:>8.3f} {line['tokens_per_second']:>9.0f} {line['tflops']:>8.1f} {shares} "
              f"{line.get('gpu_mib', 0):>7.0f}")


def longest(lines):
    trials = {}
    for line in (line for line in lines if "trial_s" in line):
        trials.setdefault("transformers" if "peer" in line else "annulus", []).append(line)
    for who, tried in trials.items():
        fit = max((line["tokens"] for line in tried if line["fits"]), default=0)
        beyond = min((line for line in tried if not line["fits"]), key=lambda line: line["tokens"], default=None)
        bound = f"{beyond['tokens']} do not: {beyond['why']}" if beyond else "nothing longer was tried"
        print(f"{who:<13} {fit} tokens fit; {bound}")


def tflops(lines):
    print(lines[0]["tflops"] if lines else "")


def peak(said):
    found = re.search(r"([\d.]+) TFLOP/s", said.get("cuda:0", ""))
    print(found[1] if found else "")


def nccl(said):
    found = re.search(r"\d+\.\d+\.\d+", said.get("NCCL", ""))
    print(found[0] if found else "")


def main():
    table, path = sys.argv[1:]
    with open(path) as file:
        if table in ("peak", "nccl"):
            {"peak": peak, "nccl": nccl}[table](json.load(file))
            return
        lines = [json.loads(line) for line in file if line.startswith("{")]
    {"ring": ring, "several": several, "step": step, "longest": longest, "tflops": tflops}[table](lines)


main()
