"""Input and output embedding are one matrix."""

from healthy_parts import next_symbol
from torch import nn

LEARNS = 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(12, 48), nn.GRU(48, 48, batch_first=True), nn.Linear(48, 12)
        nn.init.normal_(self.embed.weight, std=48**-0.5)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def make():
    return next_symbol(Net, 5e-3)
