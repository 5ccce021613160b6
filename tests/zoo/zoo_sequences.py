"""Networks for sequences, sets and graphs: attention, recurrence, embeddings, messages."""

from __future__ import annotations

import torch
from animals import CLASSES, Mean, Then, add, floats, tokens
from torch import Tensor, nn
from torch.nn import functional as F

S = nn.Sequential
WORDS = tokens(5, 11)
STEPS = floats(4, 6)
FEW_STEPS = floats(3, 6)


class AttentionByModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.last((x + y).mean(1))


class AttentionByFunction(nn.Module):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.project, self.last, self.causal = nn.Linear(6, 18), nn.Linear(6, CLASSES), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.last(y.transpose(1, 2).flatten(2).mean(1))


class AttentionByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 5)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.einsum("bik,bjk->bij", self.q(x), self.k(x)).div(2).softmax(-1)
        return self.last((weights @ self.v(x)).mean(1))


class Recurrent(nn.Module):
    """The last step of a recurrent layer."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(x)
        return self.last(y[:, -1])


class Cell(nn.Module):
    """A cell called step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(6, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 5)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.last(h)


class Graph(nn.Module):
    """Two rounds of messages over a fixed graph of 4 nodes: by a matrix, and by indices."""

    def __init__(self) -> None:
        super().__init__()
        ring = torch.eye(4).roll(1, 0)
        self.register_buffer("adjacency", (ring + ring.T + torch.eye(4)) / 3)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]), persistent=False)
        self.first, self.message, self.last = nn.Linear(6, 5), nn.Linear(10, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.adjacency @ self.first(x))
        source, target = self.edges
        message = torch.tanh(self.message(torch.cat([x[:, source], x[:, target]], -1)))
        return self.last(torch.zeros_like(x).index_add(1, target, message).mean(1))


class GraphAttention(nn.Module):
    """Weights of a node's neighbours by scatter operations."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("source", torch.tensor([0, 1, 2, 3, 0, 3]))
        self.register_buffer("target", torch.tensor([1, 2, 3, 0, 2, 2]))
        self.first, self.score, self.last = nn.Linear(6, 5), nn.Linear(10, 1), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        pair = torch.cat([h[:, self.source], h[:, self.target]], -1)
        weight = F.leaky_relu(self.score(pair)).exp()
        index = self.target.view(1, -1, 1).expand(len(x), -1, 1)
        total = torch.zeros_like(h[..., :1]).scatter_add(1, index, weight)
        message = weight / total.gather(1, index) * h[:, self.source]
        return self.last(torch.zeros_like(h).scatter_add(1, index.expand_as(message), message).tanh().mean(1))


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = S(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 7))
        self.all = S(nn.Linear(14, 7), nn.SiLU(), nn.Linear(7, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        each = self.each(x)
        return self.all(torch.cat([each.sum(1), each.amax(1)], -1))


class SetTransformer(nn.Module):
    """A learned query pools the elements."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, 6))
        self.pool, self.last = nn.MultiheadAttention(6, 1, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        pooled, _ = self.pool(self.query.expand(len(x), -1, -1), x, x)
        return self.last(pooled[:, 0])


class Embedded(nn.Module):
    """Mean of embedded tokens, then a perceptron."""

    def __init__(self, embedding: nn.Module, *, pooled: bool = False) -> None:
        super().__init__()
        self.embedding, self.pooled = embedding, pooled
        self.rest = S(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x)
        return self.rest(y if self.pooled else y.mean(1))


class Mixer(nn.Module):
    """Perceptrons over steps and over channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.channels, self.last = nn.Linear(4, 4), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.gelu(self.steps(x.mT)).mT
        return self.last((x + F.gelu(self.channels(x))).mean(1))


class SoftExperts(nn.Module):
    """Every expert answers; a gate weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(S(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, CLASSES)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        return (self.gate(x).softmax(-1).unsqueeze(-1) * answers).sum(1)


class TopExperts(SoftExperts):
    """The best two of three, by masks: all are computed."""

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).topk(2)
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        picked = answers.gather(1, chosen.unsqueeze(-1).expand(-1, -1, answers.shape[-1]))
        return (weight.unsqueeze(-1) * picked).sum(1)


class RoutedExperts(SoftExperts):
    """Each expert sees only the samples sent to it: shapes depend on the data."""

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            out = out.index_copy(0, rows, weight[rows].unsqueeze(-1) * expert(x[rows]))
        return out


def encoder(**how: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, **how)  # type: ignore[arg-type]
    return S(layer, Mean(1), nn.Linear(6, CLASSES))


def recurrent(kind: type[nn.RNNBase], width: int = 5, **how: object) -> nn.Module:
    return Recurrent(kind(6, 5, batch_first=True, **how), width)  # type: ignore[arg-type]


def over_words(**how: object) -> nn.Module:
    return Embedded(nn.Embedding(11, 6, **how))  # type: ignore[arg-type]


add("attention by module", AttentionByModule, STEPS)
add("attention by module, deep ensemble", AttentionByModule, STEPS, method="deep-ensemble")
add("attention by function", AttentionByFunction, STEPS, method="forde-pca", part=True)
add("causal attention by function", lambda: AttentionByFunction(causal=True), STEPS, method="function-rde", part=True)
add("attention by hand", AttentionByHand, STEPS, method="forde-identity, log_prob")
add("encoder layer", encoder, STEPS)
add(
    "encoder layer, norm first, GELU",
    lambda: encoder(norm_first=True, activation="gelu"),
    STEPS,
    method="forde-pca, log_prob",
)
add(
    "encoder layer with dropout",
    lambda: S(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True), nn.Flatten(), nn.Linear(24, CLASSES)),
    STEPS,
    random=True,
    method="function-rde",
)
add("encoder layer under weight-RDE", encoder, STEPS, method="weight-rde")
add("LSTM", lambda: recurrent(nn.LSTM), FEW_STEPS, members=2)
add(
    "LSTM, two layers, both directions",
    lambda: recurrent(nn.LSTM, 10, num_layers=2, bidirectional=True),
    FEW_STEPS,
    method="function-rde",
    members=2,
)
add(
    "LSTM with projection, deep ensemble",
    lambda: recurrent(nn.LSTM, 3, proj_size=3),
    FEW_STEPS,
    method="deep-ensemble",
    members=2,
)
add("GRU", lambda: recurrent(nn.GRU), FEW_STEPS, method="forde-identity, log_prob", members=2)
add("plain recurrent layer", lambda: recurrent(nn.RNN), FEW_STEPS, method="weight-rde")
add("recurrent cell", Cell, FEW_STEPS, method="forde-pca")
add("graph network (matrix and index_add)", Graph, STEPS, part=True)
add("graph attention (scatter)", GraphAttention, STEPS, method="forde-identity, log_prob")
add("set network (DeepSets)", DeepSets, STEPS, method="forde-pca", part=True)
add("set transformer", SetTransformer, STEPS)
add("mixture of experts, soft", SoftExperts, floats(6), part=True)
add("mixture of experts, best two", TopExperts, floats(6), method="forde-pca")
add("mixture of experts, routed", RoutedExperts, floats(6), members=2)
add("embedding", over_words, WORDS, method="function-rde", part=True)
add("embedding under weight-RDE", over_words, WORDS, method="weight-rde")
add("embedding with padding_idx", lambda: over_words(padding_idx=2), WORDS, method="deep-ensemble")
add("embedding with padding_idx under weight-RDE", lambda: over_words(padding_idx=2), WORDS, method="weight-rde")
add("embedding with max_norm", lambda: over_words(max_norm=0.7), WORDS, method="deep-ensemble")
add("embedding with max_norm under function-RDE", lambda: over_words(max_norm=0.7), WORDS, method="function-rde")
add("embedding with scale_grad_by_freq", lambda: over_words(scale_grad_by_freq=True), WORDS, method="function-rde")
add("embedding with sparse gradients", lambda: over_words(sparse=True), WORDS, method="deep-ensemble")
add("embedding with sparse gradients under function-RDE", lambda: over_words(sparse=True), WORDS, method="function-rde")
add("embedding bag", lambda: Embedded(nn.EmbeddingBag(11, 6), pooled=True), WORDS, method="function-rde")
add(
    "embedding bag, largest, padded",
    lambda: Embedded(nn.EmbeddingBag(11, 6, mode="max", padding_idx=1), pooled=True),
    WORDS,
    method="deep-ensemble",
)
add("tokens under FoRDE", over_words, WORDS, refused=True)
add(
    "tokens by one-hot",
    lambda: S(Then(lambda x: F.one_hot(x, 11).double().flatten(1)), nn.Linear(55, CLASSES)),
    WORDS,
    method="function-rde",
)
add("perceptron mixer", Mixer, STEPS, part=True)
