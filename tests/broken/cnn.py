"""A small CNN on digits that trains far too slowly; its rate follows a schedule. Somebody else's habit: all in `main`."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=2e-5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 50)
    for _ in range(STEPS):
        batch = torch.randint(len(x), (32,))
        loss = F.cross_entropy(net(x[batch]), y[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        scheduler.step()
        print(loss.item())


STEPS = 200
if __name__ == "__main__":
    main()
