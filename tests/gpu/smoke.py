"""One run that shows whether the GPU clock works here, and what it sees: python -m tests.gpu.smoke"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
import traceback

faulthandler.enable()
T0 = time.perf_counter()


def say(*what):
    print(f"[{time.perf_counter() - T0:5.1f}]", *what, flush=True)


def part(f):
    try:
        say("---", f.__name__)
        f()
    except BaseException:
        say("FAILED", f.__name__)
        traceback.print_exc()
        sys.stderr.flush()


S = {}


def versions():
    import numpy
    import torch
    import triton

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    say("python", sys.version.split()[0], "torch", torch.__version__, "triton", triton.__version__, "numpy", numpy.__version__)
    say(torch.cuda.get_device_name(), "cuda", torch.version.cuda)
    from tritonprobe.gpu import cupti as C

    say("libraries", list(C.libraries()))


def raw_cupti():
    import ctypes as c

    from tritonprobe.gpu import cupti as C
    from tritonprobe.gpu.driver import Driver, Marker

    driver = Driver()
    driver.relax()
    device = driver.active_device()
    say("driver", driver.version, "active device", device)
    cu = C.the_cupti()
    S["cu"] = cu
    say("cupti", cu.path, cu.version, "subscribed", cu.is_subscribed())
    say("clock skew to time.time_ns us", (cu.timestamp() - time.time_ns()) / 1e3)
    m = S["marker"] = Marker(driver, device)
    m.launch(1)
    m.finish()
    cu.register()
    t = time.perf_counter()
    cu.enable()
    say("first enable us", (time.perf_counter() - t) * 1e6)
    for g in (3, 1, 2, 5):
        m.launch(g)
    cu.disable()
    m.finish()
    for i in range(4):
        cu.flush()
        say("after flush", i, "requested", cu.requested, "returned", cu.returned, "outstanding", cu.outstanding, "full", [n for _, n in cu._full], "faults", cu.faults)
        time.sleep(0.005)
    if cu.outstanding:
        cu.flush(1)
        say("after forced flush: outstanding", cu.outstanding, "full", [n for _, n in cu._full])
    if cu._full:
        b, n = cu._full[0]
        raw = b[:n].copy()
        say("bytes", n, "hex of 224:", raw[:224].tobytes().hex())
        p = c.c_void_p()
        places = []
        while cu._lib.cuptiActivityGetNextRecord(raw.ctypes.data, n, c.byref(p)) == 0:
            places.append(p.value - raw.ctypes.data)
        say("records at", places)
    cu.discard()
    say("dropped", cu.dropped())
    e, d, f = [], [], []
    for _ in range(50):
        t0 = time.perf_counter(); cu.enable(); t1 = time.perf_counter(); cu.disable(); t2 = time.perf_counter(); cu.flush(); t3 = time.perf_counter()
        e.append(t1 - t0); d.append(t2 - t1); f.append(t3 - t2)
    say("us enable", sorted(e)[25] * 1e6, "disable", sorted(d)[25] * 1e6, "flush", sorted(f)[25] * 1e6)


def self_test():
    from tritonprobe.gpu.clock import marker_of
    from tritonprobe.gpu.driver import Driver

    cu = S["cu"]
    marker_of(cu, Driver(), 0)
    say("stride", cu.stride, "outstanding", cu.outstanding)
    m = S["marker"]

    def loop(n=2000):
        t = time.perf_counter()
        for _ in range(n):
            m.launch(1)
        t = time.perf_counter() - t
        m.finish()
        return t / n * 1e6

    loop()
    a, b = [], []
    for _ in range(7):
        a.append(loop())
        cu.enable()
        b.append(loop())
        cu.disable()
        cu.flush()
        cu.collect(1.0)
        cu.discard()
    say("marker launch us off", sorted(a)[3], "on", sorted(b)[3], "dropped", cu.dropped(), "requested", cu.requested, "outstanding", cu.outstanding)


def setup():
    import torch
    import triton
    import triton.language as tl

    import tritonprobe
    from tests.gpu import smoke_kernels as K
    from tritonprobe import runtime

    tritonprobe.configure(gpu_windows=True)
    tritonprobe.instrument()
    rt = S["rt"] = runtime.current()
    rt.adapter.gpu.times.begins("smoke")
    S["windows"] = rt.adapter.windows
    x = S["x"] = torch.zeros(1 << 22, device="cuda")
    for f in (K.ka, K.kb):
        f[(1,)](x, 128, 2, BLOCK=128)
        f[(1,)](x, 100, 2, BLOCK=128)
    torch.cuda.synchronize()
    say("kernels known", len(S["windows"]._binaries), "device", rt.device)


def look(seconds=0.05):
    from tritonprobe.gpu.analysis import analyse
    from tritonprobe.gpu.clock import readable
    from tritonprobe.gpu.cupti import text_at
    from tritonprobe.gpu.graphs import Capture, Graphs
    from tritonprobe.gpu.window import Window

    graphs = S.setdefault("graphs", Graphs())
    for launches, alive in S["rt"].adapter.gpu.times.captures:
        graphs.captured(Capture(launches, alive))
    S["rt"].adapter.gpu.times.captures.clear()
    w = Window(S["cu"], S["windows"])
    with S["cu"].use:
        t0 = time.thread_time()
        taken = w.run(seconds)
        t1 = time.thread_time()
    if isinstance(taken, str):
        return taken, None, (t1 - t0, 0)
    found = analyse(taken.seen, taken.records, taken.edges, taken.offset_ns, graphs, text_at, readable)
    return taken, found, (t1 - t0, time.thread_time() - t1)


def checked(taken, found):
    """Ground truth: the bucket's n is the grid in blocks times 128, less 28 for even grids."""
    if found is None:
        return taken
    import numpy as np

    from tritonprobe.gpu.attribution import attribute, columns
    from tritonprobe.gpu.cupti import text_at

    r = taken.records
    addr, name_of = np.unique(r.name, return_inverse=True)
    names = [text_at(a) for a in addr.tolist()]
    alone = np.flatnonzero(r.graph == 0)
    L = columns(taken.seen, taken.edges)
    a = attribute(L, r.take(alone), names, name_of[alone])
    right = wrong = 0
    for i, lab in zip(alone.tolist(), a.label.tolist()):
        if lab >= 0 and a.labels[lab] is not None:
            g = int(r.grid[i]) >> 32
            k, bucket = a.labels[lab]
            bucket += ","
            ok = k.endswith("." + names[name_of[i]]) and ("tag" in bucket or bucket)
            want = S["want"](names[name_of[i]], g)
            if want is None or (ok and want in bucket):
                right += 1
            else:
                wrong += 1
                if wrong < 4:
                    say("WRONG", names[name_of[i]], g, k, bucket, want)
    return dict(records=len(r), seen=len(taken.seen), right=right, wrong=wrong, matched=a.matched, dropped=a.dropped,
                one_by_one=int((a.launch >= 0).sum()), queue_us=float(np.median(found.queue_ns)) / 1e3 if len(found.queue_ns) else None,
                streams=np.unique(r.stream).tolist(), edges=taken.edges, states=np.bincount(L.state, minlength=3).tolist())


def during(work, seconds=0.05):
    out = []
    t = threading.Thread(target=lambda: out.append(look(seconds)))
    t.start()
    while t.is_alive():
        work()
    t.join()
    return out[0]


def one_thread():
    import random

    from tests.gpu import smoke_kernels as K

    r = random.Random(1)
    x = S["x"]
    S["want"] = lambda name, g: f"n<={1 << (max(g, 1) * 128 - (0 if g % 2 else 28) - 1).bit_length()},"

    def work():
        f = K.ka if r.random() < 0.5 else K.kb
        g = r.randrange(1, 500)
        f[(g,)](x, g * 128 - (0 if g % 2 else 28), 16, BLOCK=128)

    for i in range(4):
        taken, found, cost = during(work)
        say(checked(taken, found), "cost ms", [round(c * 1e3, 2) for c in cost])
        if found is not None and i == 0:
            say("labels", [(lab, n, round(ns / n)) for lab, n, ns in found.sums()][:6])
    # same grid, several buckets: order alone decides

    ranged, S["want"] = S["want"], lambda name, g: None

    def work2():
        n = r.choice((100, 1000, 10000, 100000, 128, 1024))
        K.ka[(7,)](x, n, 16, BLOCK=128)

    for i in range(4):
        taken, found, cost = during(work2)
        say("one grid, six buckets", checked(taken, found))
        if found is not None:
            say("  ", [(lab[1], n, round(ns / n)) for lab, n, ns in found.sums()])
    S["want"] = ranged
    # 1000 launches, quiet edges: all matched
    out = []
    t = threading.Thread(target=lambda: out.append(look(0.2)))
    t.start()
    time.sleep(0.05)
    for _ in range(1000):
        work()
    t.join()
    say("1000 launches", checked(out[0][0], out[0][1]))


def threads():
    import random

    import torch

    from tests.gpu import smoke_kernels as K

    x = S["x"]
    for streams in (4, 1):
        pool = [torch.cuda.Stream() for _ in range(streams)]
        stop = threading.Event()

        def worker(i):
            r = random.Random(i)
            with torch.cuda.stream(pool[i % streams]):
                while not stop.is_set():
                    f = K.ka if r.random() < 0.5 else K.kb
                    g = r.randrange(0, 100)
                    f[(g,)](x, max(g, 1) * 128 - (0 if g % 2 else 28), 16, BLOCK=128)

        ts = [threading.Thread(target=worker, args=(i,)) for i in range(4)]
        [t.start() for t in ts]
        for _ in range(5):
            taken, found, cost = look(0.03)
            say(streams, "streams", checked(taken, found), "cost ms", [round(c * 1e3, 2) for c in cost])
        stop.set()
        [t.join() for t in ts]
        torch.cuda.synchronize()


def graph():
    import numpy as np
    import torch

    from tests.gpu import smoke_kernels as K

    x = S["x"]

    def body():
        for i in range(100):
            (K.ka if i % 3 else K.kb)[(i + 1,)](x, (i + 1) * 128, 16, BLOCK=128)

    body()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        body()
    say("captures", [(len(l), alive()) for l, alive in S["rt"].adapter.gpu.times.captures], S["rt"].adapter.gpu.times._busy_with)
    S["g"] = g

    def rep(n=200):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(n):
            g.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - t) / n * 1e6

    for i in range(3):
        taken, found, cost = during(lambda: rep(20), 0.02)
        if found is None:
            say(taken)
            continue
        r = taken.records
        gr = r.graph != 0
        corr = np.unique(r.correlation[gr])
        say("graph records", int(gr.sum()), "graph ids", np.unique(r.graph).tolist(), "replays by corr", len(corr), "nodes", len(np.unique(r.node[gr])), "replayed", found.replayed, "cost ms", [round(c * 1e3, 2) for c in cost],
            "groups", np.unique(np.unique(r.correlation[gr], return_counts=True)[1]).tolist())
        say("  labels", len(found.labels), [(lab, n, round(ns / n)) for lab, n, ns in found.sums()][:3], "external", [lab for lab in found.labels if lab[1] == "external"][:4])
    a, b = [], []
    cu = S["cu"]
    for _ in range(7):
        a.append(rep())
        cu.enable(); b.append(rep()); cu.disable(); cu.collect(2.0); cu.discard()
    say("replay of 100 us: off", sorted(a)[3], "always on", sorted(b)[3], "dropped", cu.dropped(), "outstanding", cu.outstanding)


def finalize():
    faulthandler.dump_traceback_later(18, exit=True)
    import torch

    from tests.gpu import smoke_kernels as K
    from tritonprobe.gpu.clock import marker_of
    from tritonprobe.gpu.cupti import the_cupti
    from tritonprobe.gpu.driver import Driver

    x = torch.zeros(1 << 20, device="cuda")
    for f in (K.ka, K.kb):
        f[(1,)](x, 128, 16, BLOCK=128)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for i in range(100):
            (K.ka if i % 3 else K.kb)[(i + 1,)](x, (i + 1) * 128, 16, BLOCK=128)

    def rep(n=1500):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(n):
            g.replay()
        torch.cuda.synchronize()
        return round((time.perf_counter() - t) / n * 1e6, 2)

    def several(tag):
        say(tag, sorted(rep() for _ in range(5)))

    rep()
    several("before CUPTI")
    cu = the_cupti()
    several("loaded")
    cu.register()
    several("registered")
    marker_of(cu, Driver(), 0)
    several("self-tested")
    for i in range(3):
        t = time.perf_counter()
        cu.finalize()
        say("finalize us", (time.perf_counter() - t) * 1e6)
        several("finalized")
        t = time.perf_counter()
        cu.register()
        cu.enable()
        say("register+enable us", (time.perf_counter() - t) * 1e6)
        g.replay()
        torch.cuda.synchronize()
        cu.disable()
        whole = cu.collect(1.0)
        say("records after coming back", len(cu.records()), whole, "outstanding", cu.outstanding)
        several("on and off again")


def graph_only():
    """What the first replays of a window look like."""
    import numpy as np

    versions()
    from tritonprobe.gpu.clock import marker_of
    from tritonprobe.gpu.cupti import the_cupti
    from tritonprobe.gpu.driver import Driver

    from tests.gpu import smoke_kernels as K

    setup()
    cu = S["cu"] = the_cupti()
    marker_of(cu, Driver(), 0)
    import torch

    x = S["x"]

    def body():
        for i in range(100):
            K.ka[(i + 1,)](x, (i + 1) * 128, 16, BLOCK=128)

    body()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        body()

    def rep():
        for _ in range(20):
            g.replay()
        torch.cuda.synchronize()

    for i in range(4):
        taken, found, cost = during(rep, 0.02)
        if found is None:
            say(taken)
            continue
        r = taken.records
        d = (r.end - r.start)
        for which in (0, 1, 2, -1):
            c = np.unique(r.correlation)[which]
            m = r.correlation == c
            say("replay", which, "n", int(m.sum()), "start-on us", (int(r.start[m].min()) - taken.on_ns) / 1e3, "ns min/med/max", d[m].min(), int(np.median(d[m])), d[m].max(), "first five", d[m][:5].tolist(), "starts", (r.start[m][:4] - r.start[m][0]).tolist())
        big = np.flatnonzero(d > 20 * np.median(d))
        say("outliers", len(big), [(int(r.correlation[j] - r.correlation.min()), int(d[j])) for j in big[:5]])
        say("labels", [(lab, n, round(ns / n)) for lab, n, ns in found.sums()][:2])
    # plain launches: the first record of a window
    for i in range(3):
        taken, found, cost = during(lambda: K.ka[(3,)](x, 384, 16, BLOCK=128), 0.02)
        if found is not None:
            d = taken.records.end - taken.records.start
            say("plain", len(d), "first", d[:4].tolist(), "median", float(np.median(d)), "max", int(d.max()), int(np.argmax(d)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        globals()[sys.argv[1]]()
    else:
        faulthandler.dump_traceback_later(90, exit=True)
        for f in (versions, self_test, setup, one_thread, threads, graph):
            part(f)
        say("done")
