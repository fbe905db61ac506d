"""A Lightning module that trains far too slowly."""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

lightning.seed_everything(0)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, _):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        print(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-5)
        return optimizer  # noqa: RET504 - as many write it


x = torch.randn(512, 10)
data = TensorDataset(x, (x @ torch.randn(10, 4)).argmax(1))
classifier = Classifier()
trainer = lightning.Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(classifier, DataLoader(data, 16, shuffle=True))
