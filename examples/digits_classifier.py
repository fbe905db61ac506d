"""A nine-layer classifier of handwritten digits, as one would write it: PyTorch's own initialization, plain SGD.

It sits at chance. Learn why with

    trimtab run examples/digits_classifier.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

pixels, labels = load_digits(return_X_y=True)
x = torch.tensor(pixels, dtype=torch.float32)
x = (x - x.mean()) / x.std()
y = torch.tensor(labels)
order = torch.randperm(len(x))
train, test = order[:1400], order[1400:]

layers = [nn.Linear(64, 128), nn.ReLU()]
for _ in range(7):
    layers += [nn.Linear(128, 128), nn.ReLU()]
layers += [nn.Linear(128, 10)]
model = nn.Sequential(*layers)

optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for step in range(600):
    batch = train[torch.randint(len(train), (64,))]
    loss = F.cross_entropy(model(x[batch]), y[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        print(f"step {step + 1}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
print(f"accuracy on held-out digits: {accuracy:.2f}")
