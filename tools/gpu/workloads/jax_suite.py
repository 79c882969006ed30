"""Small JAX workloads with fixed seeds; what one prints must be equal with and without the pager, but for its times.

jax_suite.py small|large|inference
  small      trains a transformer of 14 million parameters: all that it uses fits 512 MiB
  large      trains one of 350 million parameters: about 7 GiB of parameters, states and gradients
  inference  reads 6 GiB of weights once in each step
The lines "s/first STEP" and "s/step" are times: until the first step is over, and the median of the last twenty.
"""
import os
import sys
import time

BEGAN = time.perf_counter()
# The same kernels in each run: what is timed to be chosen may differ.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import functools  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

SIZES = {"small": dict(width=384, layers=6, heads=6, vocabulary=4096, batch=8, length=128),
         "large": dict(width=1536, layers=11, heads=16, vocabulary=16384, batch=8, length=256)}


def parameters(key, width, layers, vocabulary, **_):
    def one(shape):
        nonlocal key
        key, now = jax.random.split(key)
        return jax.random.normal(now, shape, jnp.float32) * 0.02

    return {"embedding": one((vocabulary, width)),
            "layers": [{"attention": one((width, 3 * width)), "out": one((width, width)), "up": one((width, 4 * width)),
                        "down": one((4 * width, width))} for _ in range(layers)]}


def loss_of(params, tokens, heads):
    x = params["embedding"][tokens[:, :-1]]
    batch, length, width = x.shape
    mask = jnp.tril(jnp.ones((length, length), bool))
    for layer in params["layers"]:
        normal = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        q, k, v = jnp.split((normal @ layer["attention"]).reshape(batch, length, heads, -1), 3, axis=-1)
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k) / (width / heads) ** 0.5
        mixed = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)
        x = x + mixed.reshape(batch, length, width) @ layer["out"]
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    logits = x @ params["embedding"].T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1))


@functools.partial(jax.jit, static_argnums=3, donate_argnums=(0, 1))
def train_step(params, states, tokens, heads):
    loss, gradients = jax.value_and_grad(loss_of)(params, tokens, heads)
    states = jax.tree.map(lambda s, g: (0.9 * s[0] + 0.1 * g, 0.99 * s[1] + 0.01 * g * g), states, gradients,
                          is_leaf=lambda s: isinstance(s, tuple))
    params = jax.tree.map(lambda p, s: p - 1e-3 * s[0] / (jnp.sqrt(s[1]) + 1e-8), params, states)
    return params, states, loss


def timed(step, steps):
    times = []
    for index in range(steps):
        begin = time.perf_counter()
        value = step(index)
        times.append(time.perf_counter() - begin)
        if index == 0:
            print(f"s/first {time.perf_counter() - BEGAN:.2f}", flush=True)
        if index % 20 == 0:
            print(index, value, flush=True)
    print(f"s/step {sorted(times[-20:])[10]:.6f}")


def train(name):
    size = SIZES[name]
    params = parameters(jax.random.key(1), **size)
    states = jax.tree.map(lambda p: (jnp.zeros_like(p), jnp.zeros_like(p)), params)
    tokens = jax.random.randint(jax.random.key(2), (size["batch"], size["length"] + 1), 0, size["vocabulary"])

    def step(_):
        nonlocal params, states
        params, states, loss = train_step(params, states, tokens, size["heads"])
        return float(loss)

    timed(step, 201 if name == "small" else 61)


def inference():
    weights = [jax.random.normal(jax.random.key(n), (8192, 8192), jnp.bfloat16) / 90 for n in range(48)]
    apply = jax.jit(lambda x, ws: functools.reduce(lambda y, w: jnp.tanh(y @ w), ws, x))
    x = jnp.ones((1, 8192), jnp.bfloat16)
    timed(lambda _: float(apply(x, weights).astype(jnp.float32).sum()), 41)


if __name__ == "__main__":
    inference() if sys.argv[1] == "inference" else train(sys.argv[1])
    try:
        print("in use at most", jax.devices()[0].memory_stats()["peak_bytes_in_use"] >> 20, "MiB", file=sys.stderr)
    except (KeyError, TypeError, AttributeError):
        pass  # an allocator without statistics
