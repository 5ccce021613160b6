"""Which results of a backward pass anyone will use.

torch's own nodes leave out gradients that the running pass does not ask for. Functions written in Python are told only
whether an argument requires a gradient at all, and so would compute the weights' gradients where `autograd.grad(y, x)`
wants that of the inputs, and the inputs' where `backward(inputs=parameters)` wants those of the weights.
"""

from __future__ import annotations

from typing import Any

from forde.torch_private import will_run


def wanted(ctx: Any, n: int) -> list[bool]:
    """For the first n arguments of an `autograd.Function`, whether the running backward pass uses their gradients.

    All of them must be tensors, or None at the end. Called from inside `backward`, where `ctx` is the node.

    >>> import torch
    >>> class Product(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, a, b):
    ...         return a * b
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         print(wanted(ctx, 2))
    ...         return g, g
    >>> a, b = torch.ones(2, requires_grad=True)[:, None], torch.ones(2, requires_grad=True)
    >>> torch.autograd.backward(Product.apply(a, b).sum(), inputs=[b])
    [False, True]
    """
    first, *others = ctx.needs_input_grad[:n]
    others = [need and will_run(ctx.next_functions[i][0]) for i, need in enumerate(others, start=1)]
    # Where nobody wants the others, the node runs for the first one alone.
    return [first and (not any(others) or will_run(ctx.next_functions[0][0])), *others]
