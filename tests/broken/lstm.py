"""An LSTM that is to tell the sign of a sum; nobody clears its gradients."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 16, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


x = torch.randn(256, 8, 4)
y = (x.sum((1, 2)) > 0).long()
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(150):
    batch = torch.randint(256, (32,))
    loss = F.cross_entropy(model(x[batch]), y[batch])
    loss.backward()
    optimizer.step()
    print(loss.item())
