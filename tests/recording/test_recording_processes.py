"""Workers, forks and threads: the record is that of the process and thread that trains."""

import os
import threading

import pytest
import torch
from recording_cases import Net, count, hooks, record_of, watching
from torch.utils.data import DataLoader, Dataset

from trimtab.recording import Record


class Features(Dataset):
    """Data made by the watched model itself, inside the workers."""

    def __init__(self, net):
        self.net = net

    def __len__(self):
        return 32

    def __getitem__(self, index):
        x = torch.full((5,), float(index))
        self.net(x[None])  # with gradients on, as a forgetful user would
        with torch.no_grad():
            self.net(x[None])
        return x


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_do_not_record(tmp_path, context):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with watching(net, optimizer, 1, tmp_path / "a.db") as recorder:
        net(torch.randn(8, 5)).sum().backward()  # the workers start in the middle of a recorded step
        optimizer.step()
        net(torch.randn(8, 5))
        loader = DataLoader(Features(net), batch_size=8, num_workers=1, multiprocessing_context=context)
        steps = 0
        for x in loader:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            steps += 1
        del loader
    recorder.store.close()
    record = Record.open(tmp_path / "a.db")
    assert record.steps.tolist() == list(range(steps + 1))
    assert [count(record, "a", "output", step) for step in range(1, steps + 1)] == [8 * 7] * steps


def test_a_forked_child_writes_nothing(tmp_path):
    """Not even when it trains, runs closures and closes what it has inherited."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.randn(8, 5)).sum()
        loss.backward()
        return loss

    with watching(net, optimizer, 1, tmp_path / "a.db") as recorder:
        for _ in range(2):
            closure()
            optimizer.step()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(3):
                    closure()
                    optimizer.step()
                    optimizer.step(closure)
                recorder.close("child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert not Record.open(tmp_path / "a.db").finished
        for _ in range(2):
            closure()
            optimizer.step()
    recorder.store.close()
    record = Record.open(tmp_path / "a.db")
    assert record.steps.tolist() == [0, 1, 2, 3]
    assert record.facts["how"] == "ended"


def test_training_in_another_thread():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train():
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(8, 5)).sum().backward()
            optimizer.step()

    with watching(net, optimizer) as recorder:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2, 3, 4]
    assert [count(record, "a", "gradient", step) for step in range(5)] == [56] * 5


def beside(other, train):
    """Run `train` while another thread runs `other` over and over."""
    stop, trouble = threading.Event(), []

    def loop():
        while not stop.is_set():
            try:
                other()
            except Exception as error:
                trouble.append(error)
                return

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        return train()
    finally:
        stop.set()
        thread.join()
        assert trouble == []


@pytest.mark.parametrize("kind", ["the same model, without gradients", "another training"])
def test_another_thread_does_not_disturb(kind):
    """Readings beside a second thread may be missing, but they are those of the first, and training is unchanged."""

    def run(watch):
        torch.manual_seed(0)
        net, foreign = Net().double(), Net().double()
        optimizer, theirs = (torch.optim.SGD(m.parameters(), 0.01) for m in (net, foreign))
        batches = torch.randn(60, 8, 5, dtype=torch.float64)
        big = torch.full((50, 5), 1e6, dtype=torch.float64)

        def other():
            if kind == "another training":
                theirs.zero_grad()
                foreign(big).square().mean().backward()
                theirs.step()
                with torch.no_grad():
                    for p in foreign.parameters():
                        p.zero_()
            else:
                with torch.no_grad():
                    net(big)

        def train():
            losses = []
            for x in batches:
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        if not watch:
            return train(), [p.detach().clone() for p in net.parameters()], None
        with watching(net, optimizer) as recorder:
            losses = beside(other, train)
        assert hooks(net, optimizer) == []
        return losses, [p.detach().clone() for p in net.parameters()], record_of(recorder)

    losses, weights, _ = run(watch=False)
    same, also, record = run(watch=True)
    assert losses == same
    assert all(torch.equal(a, b) for a, b in zip(weights, also, strict=True))
    assert record.steps.tolist() == list(range(60))
    kept = record.losses[record.loss_seen]
    assert set(kept.tolist()) <= set(losses)
    assert len(kept) >= 50
    gradient = record.series(record.site(0, "b", "gradient"))
    assert gradient.abs_max.max() < 100


def test_several_threads_on_one_model_do_not_crash():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    trouble = []

    def work():
        try:
            for _ in range(30):
                net(torch.randn(8, 5)).square().mean().backward()
        except Exception as error:
            trouble.append(error)

    with watching(net, optimizer) as recorder:
        for _ in range(3):
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            optimizer.step()
            optimizer.zero_grad()
    assert trouble == []
    assert record_of(recorder).steps.tolist() == [0, 1, 2]
