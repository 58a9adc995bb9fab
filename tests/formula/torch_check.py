"""Runs the Python texts of test_torch.c in f64. Exit status 77: there is no PyTorch here."""
import json
import math
import sys
import types

try:
    import torch
except ImportError:
    sys.exit(77)

torch.set_default_dtype(torch.float64)
LEAST = 1e-10
wrong = []


def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, return_lse=False):
    """What FlexAttention computes, pair by pair; block_mask: bool (queries, keys)."""
    scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    rows = [[torch.stack([score_mod(scores[b, h, i, j], *map(torch.tensor, (b, h, i, j))) for j in range(key.shape[-2])])
             for i in range(query.shape[-2])] for b in range(query.shape[0]) for h in range(query.shape[1])]
    m = torch.stack([torch.stack(r) for r in rows]).reshape(scores.shape)
    if block_mask is not None:
        m = torch.where(block_mask, m, torch.tensor(-math.inf))
    return torch.softmax(m, -1) @ value, torch.logsumexp(m, -1)


module = types.ModuleType('torch.nn.attention.flex_attention')
module.flex_attention = flex_attention
sys.modules['torch.nn.attention'] = types.ModuleType('torch.nn.attention')
sys.modules['torch.nn.attention.flex_attention'] = module


def near(what, got, want):
    size = 1 + want.abs().sum().item() / max(want.numel(), 1)
    off = (got - want).abs().max().item() if want.numel() else 0
    if not off <= LEAST * size:
        wrong.append(f'{what}: off by {off}')


def check(formula):
    space = {}
    exec(formula['torch'], space)
    for case in formula['cases']:
        where = f"{formula['text']}, {len(case['s'])} keys"
        s = torch.tensor(case['s'], requires_grad=True)
        seen = torch.tensor(case['seen']) > 0
        scalars = [torch.tensor(x, requires_grad=True) for x in case['scalars']]
        a = space['attention_weights'](s, seen, formula['n'], *scalars, *formula['sizes'])
        near(f'{where}: A', a, torch.tensor(case['a']))
        (a * torch.tensor(case['w'])).sum().backward()
        near(f'{where}: dS', s.grad, torch.tensor(case['ds']))
        for k, x in enumerate(scalars):
            near(f'{where}: scalar {k}', x.grad, torch.tensor(case['dp'][0][k]))


def check_flex(formula):
    """Causal attention of one head against A V."""
    whole, space = {}, {}
    exec(formula['torch'], whole)
    exec(formula['flex'], space)
    torch.manual_seed(1)
    query, key, value = (torch.randn(1, 1, 9, 4) for _ in range(3))
    query.requires_grad_(True)
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    scalars = [torch.tensor(x) for x in formula['cases'][0]['scalars']]
    names = space['attention'].__code__.co_varnames[:space['attention'].__code__.co_argcount]
    more = {'counts': seen.sum(-1).double()} if 'counts' in names else {}
    if 'seen_values' in names:
        more['seen_values'] = seen.double() @ value
    sizes = {'H': formula['sizes'][-1]} if 'H' in names else {}
    # FlexAttention counts heads from 0, and there is one
    a = whole['attention_weights'](query @ key.transpose(-1, -2) / 2, seen, formula['n'], *scalars,
                                   *([0, *formula['sizes'][1:]] if formula['sizes'] else []))
    want = a @ value
    got = space['attention'](query, key, value, formula['n'], *scalars, **more, **sizes, block_mask=seen)
    near(f"{formula['text']}: FlexAttention", got, want.detach())
    weights = torch.randn_like(want)
    near(f"{formula['text']}: FlexAttention, gradient", torch.autograd.grad((got * weights).sum(), query)[0],
         torch.autograd.grad((want * weights).sum(), query)[0])


with open(sys.argv[1], encoding='utf-8') as file:
    formulas = json.load(file)
reached = 0
for formula in formulas:
    check(formula)
    if formula['flex']:
        check_flex(formula)
        reached += 1
if len(formulas) != 30 or reached < 18:
    wrong.append(f'{len(formulas)} formulas, {reached} for FlexAttention')
print('\n'.join(wrong))
sys.exit(1 if wrong else 0)
