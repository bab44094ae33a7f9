"""Writes expect.json: losses and gradients of label smoothing and of dynamic fine-tuning, by transformers' LabelSmoother and
by the formula of TRL's SFTTrainer.compute_loss. Made with torch 2.13, transformers 4.57.3, TRL 1.16."""
import json

import torch
from transformers.trainer_pt_utils import LabelSmoother

torch.manual_seed(0)
batch, length, size, classes = 2, 5, 6, 11
hidden = torch.randn(batch, length, size)
weight = torch.randn(classes, size)
labels = torch.randint(0, classes, (batch, length))
labels[0, :2] = -100
labels[1, 3] = -100


def smoothed(logits):
    return LabelSmoother(epsilon=0.1)({"logits": logits}, labels, shift_labels=True)


def dft(logits):  # per_token_loss * log_probs.exp().detach(), zero on ignored positions
    shifted = labels[:, 1:]
    log_probs = torch.log_softmax(logits[:, :-1], -1).gather(-1, shifted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    log_probs = log_probs.masked_fill(shifted.eq(-100), 0)
    return (-log_probs * log_probs.exp().detach()).sum() / shifted.ne(-100).sum()


cases = {}
for name, loss_of in {"label_smoothing": smoothed, "dft": dft}.items():
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = loss_of(h @ w.t())
    loss.backward()
    cases[name] = {"loss": loss.item(), "hidden": h.grad[:, :-1].flatten().tolist(), "weight": w.grad.flatten().tolist()}
json.dump(
    {
        "hidden": hidden[:, :-1].flatten().tolist(),
        "weight": weight.flatten().tolist(),
        "labels": labels[:, 1:].flatten().tolist(),
        "size": size,
        "epsilon": 0.1,
        **cases,
    },
    open("expect.json", "w"),
)
