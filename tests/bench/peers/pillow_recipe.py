"""The peer of data_bench's line with the whole recipe: Pillow (Debian: python3-pil, python3-numpy) doing what polyd's
loader does to a training picture of DeiT, one thread.

    POLYD_SHARED=... /usr/bin/python3 tests/bench/peers/pillow_recipe.py [SECONDS]

Decode a JPEG, random resized crop to 224 (bicubic, scale 0.08 to 1, ratio 3/4 to 4/3), flip, RandAugment
rand-m9-mstd0.5-inc1 (two operations of fifteen, each with probability 0.5), to numbers, normalise, erase a random
rectangle by noise with probability 0.25. Prints pictures in a second of CPU time; mixing belongs to the step.
"""
import io
import math
import os
import random
import sys
import tarfile
import time

import numpy as np
import PIL
from PIL import Image, ImageEnhance, ImageOps

GREY = (124, 116, 104)
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def crop(im, size=224):
    w, h = im.size
    for _ in range(10):
        area = w * h * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        cw, ch = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < cw <= w and 0 < ch <= h:
            x, y = random.randint(0, w - cw), random.randint(0, h - ch)
            break
    else:
        cw = ch = min(w, h)
        x, y = (w - cw) // 2, (h - ch) // 2
    return im.resize((size, size), Image.BICUBIC, (x, y, x + cw, y + ch))


def affine(im, m):
    return im.transform(im.size, Image.AFFINE, m, Image.BICUBIC, fillcolor=GREY)


def signed(x):
    return x if random.random() < 0.5 else -x


def solarize_add(im, add):
    table = [min(255, i + add) if i < 128 else i for i in range(256)]
    return im.point(table * 3)


OPERATIONS = [
    lambda im, m: ImageOps.autocontrast(im),
    lambda im, m: ImageOps.equalize(im),
    lambda im, m: ImageOps.invert(im),
    lambda im, m: im.rotate(signed(m * 3), Image.BICUBIC, fillcolor=GREY),
    lambda im, m: ImageOps.posterize(im, 4 - int(m * 0.4)) if m < 7.5 else ImageOps.posterize(im, 1),
    lambda im, m: ImageOps.solarize(im, 256 - min(256, int(m * 25.6))),
    lambda im, m: solarize_add(im, min(128, int(m * 11))),
    lambda im, m: ImageEnhance.Color(im).enhance(max(0.1, 1 + signed(m * 0.09))),
    lambda im, m: ImageEnhance.Contrast(im).enhance(max(0.1, 1 + signed(m * 0.09))),
    lambda im, m: ImageEnhance.Brightness(im).enhance(max(0.1, 1 + signed(m * 0.09))),
    lambda im, m: ImageEnhance.Sharpness(im).enhance(max(0.1, 1 + signed(m * 0.09))),
    lambda im, m: affine(im, (1, signed(m * 0.03), 0, 0, 1, 0)),
    lambda im, m: affine(im, (1, 0, 0, signed(m * 0.03), 1, 0)),
    lambda im, m: affine(im, (1, 0, signed(m * 0.045) * im.size[0], 0, 1, 0)),
    lambda im, m: affine(im, (1, 0, 0, 0, 1, signed(m * 0.045) * im.size[1])),
]


def prepare(data):
    im = crop(Image.open(io.BytesIO(data)).convert("RGB"))
    if random.random() < 0.5:
        im = im.transpose(Image.FLIP_LEFT_RIGHT)
    for op in random.choices(OPERATIONS, k=2):
        if random.random() < 0.5:
            im = op(im, min(10, max(0, random.gauss(9, 0.5))))
    x = (np.asarray(im, np.float32) * np.float32(1 / 255) - MEAN) / STD
    x = np.ascontiguousarray(x.transpose(2, 0, 1))
    if random.random() < 0.25:
        for _ in range(10):
            area, ratio = 224 * 224 * random.uniform(0.02, 1 / 3), math.exp(random.uniform(math.log(0.3), math.log(1 / 0.3)))
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if h < 224 and w < 224:
                y0, x0 = random.randint(0, 224 - h), random.randint(0, 224 - w)
                x[:, y0:y0 + h, x0:x0 + w] = np.random.default_rng().standard_normal((3, h, w), np.float32)
                break
    return x


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tarfile.open(os.path.join(os.environ["POLYD_SHARED"], "data/imagenette224/imagenette224_subset.tar")) as tar:
        files = [tar.extractfile(m).read() for m in tar if m.name.startswith("train/") and m.isfile()]
    random.seed(1)
    rates = []
    for _ in range(3):
        began, n = time.process_time(), 0
        while time.process_time() - began < seconds:
            prepare(random.choice(files))
            n += 1
        rates.append(n / (time.process_time() - began))
    print(f"peer=pillow-{PIL.__version__} {sorted(rates)[1]:.0f} pictures in a second of CPU time (least {min(rates):.0f}, most {max(rates):.0f})")


main()
