"""Losses of torch.optim.LBFGS, as a C header: README.md. The network is written out here from its formulas."""
import math
import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(2)
EVALUATIONS = 30


def losses(params, value):
    seen = []
    opt = torch.optim.LBFGS(params, line_search_fn="strong_wolfe")

    def closure():
        opt.zero_grad()
        loss = value()
        loss.backward()
        seen.append(float(loss))
        return loss

    while len(seen) < EVALUATIONS:
        opt.step(closure)
    return seen[:EVALUATIONS]


def rosenbrock():
    x = torch.tensor([-1.2, 1.0] * 5, requires_grad=True)
    return losses([x], lambda: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


D, HEADS, FF, HEAD, K, GRID, RHO = 16, 2, 64, 128, 5, 21, 5.0


def shapes():
    out = {"linear_emb.weight": (D, 2), "linear_emb.bias": (D,)}
    for stack in ("encoder", "decoder"):
        p = stack + ".layers.0."
        for act in ("act1", "act2", "ff.linear.1", "ff.linear.3"):
            out[p + act + ".w1"] = out[p + act + ".w2"] = (1,)
        out[p + "attn.in_proj_weight"], out[p + "attn.in_proj_bias"] = (3 * D, D), (3 * D,)
        out[p + "attn.out_proj.weight"], out[p + "attn.out_proj.bias"] = (D, D), (D,)
        for i, (a, b) in zip((0, 2, 4), ((FF, D), (FF, FF), (D, FF))):
            out[p + f"ff.linear.{i}.weight"], out[p + f"ff.linear.{i}.bias"] = (a, b), (a,)
        out[stack + ".act.w1"] = out[stack + ".act.w2"] = (1,)
    for i, (a, b) in zip((0, 2, 4), ((HEAD, D), (HEAD, HEAD), (1, HEAD))):
        out[f"linear_out.{i}.weight"], out[f"linear_out.{i}.bias"] = (a, b), (a,)
    for i in (1, 3):
        out[f"linear_out.{i}.w1"] = out[f"linear_out.{i}.w2"] = (1,)
    return out


def start(name, shape):
    """The formula of the start; test_lbfgs.c has it too."""
    count, phase = math.prod(shape), sum(name.encode()) % 97
    wave = torch.sin(1 + 0.37 * torch.arange(count, dtype=torch.float64) + 1.3 * phase)
    if len(shape) == 2:
        wave = wave * math.sqrt(3 / (shape[0] + shape[1]))
    else:
        wave = wave * 0.05 + (1 if name.endswith((".w1", ".w2")) else 0.01)
    return wave.reshape(shape).requires_grad_()


def pinn():
    p = {name: start(name, shape) for name, shape in shapes().items()}

    def wave(x, at):
        return p[at + ".w1"] * torch.sin(x) + p[at + ".w2"] * torch.cos(x)

    def linear(x, at):
        return x @ p[at + ".weight"].T + p[at + ".bias"]

    def three(x, at):
        x = wave(linear(x, at + ".0"), at + ".1")
        return linear(wave(linear(x, at + ".2"), at + ".3"), at + ".4")

    def attention(x, source, at):
        w, b = p[at + ".in_proj_weight"], p[at + ".in_proj_bias"]
        parts = []
        for i, v in enumerate((x, source, source)):
            v = v @ w[i * D:(i + 1) * D].T + b[i * D:(i + 1) * D]
            parts.append(v.reshape(-1, K, HEADS, D // HEADS).transpose(1, 2))
        q, k, v = parts
        a = (q @ k.transpose(2, 3) / math.sqrt(D // HEADS)) ** 3 / math.sqrt(GRID)
        return linear((a @ v).transpose(1, 2).reshape(-1, K, D), at + ".out_proj")

    def layer(x, source, at):
        y = wave(x, at + ".act1")
        x = x + attention(y, y if source is None else source, at + ".attn")
        return x + three(wave(x, at + ".act2"), at + ".ff.linear")

    def network(x, t):
        embedded = linear(torch.stack((x, t), -1), "linear_emb")
        e = wave(layer(embedded, None, "encoder.layers.0"), "encoder.act")
        d = wave(layer(embedded, e, "decoder.layers.0"), "decoder.act")
        return three(d, "linear_out")[..., 0]

    steps = torch.arange(GRID, dtype=torch.float64)
    t = (steps / (GRID - 1))[:, None, None] + torch.arange(K, dtype=torch.float64) * 1e-4
    x = (2 * math.pi * steps / (GRID - 1))[None, :, None]
    # Points are f32 numbers.
    t = t.expand(GRID, GRID, K).reshape(-1, K).float().double()
    x = x.expand(GRID, GRID, K).reshape(-1, K).float().double()
    t.requires_grad_()

    def value():
        u = network(x, t)
        u_t, = torch.autograd.grad(u.sum(), t, create_graph=True)
        grid = u.reshape(GRID, GRID, K)
        h = torch.exp(-(x.reshape(GRID, GRID, K)[0, :, 0] - math.pi) ** 2 / (2 * (math.pi / 4) ** 2))
        return ((u_t - RHO * u * (1 - u)) ** 2).mean() + ((grid[:, -1] - grid[:, 0]) ** 2).mean() + \
            ((grid[0, :, 0] - h) ** 2).mean()

    return losses([p[name] for name in p], value)


def show(name, values):
    print(f"static const double {name}[] = {{")
    for v in values:
        print(f"    {v:.17g},")
    print("};")


print(f"/* Made by peer.py with PyTorch {torch.__version__}: README.md. */")
show("peer_rosenbrock", rosenbrock())
show("peer_pinn", pinn())
