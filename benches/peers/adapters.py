"""Trains adapters of a Hugging Face model with transformers and peft: speed, memory and losses of steps on windows of a text.

    python benches/peers/adapters.py --model data/smollm2 --data fixtures/moby-dick/moby-dick.txt

needs `pip install transformers peft` beside requirements.txt. The windows follow each other in the text. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import peft
import torch
import transformers

from measures import allocator_peak, processor, reset_peak_rss, spread, status

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder of the model")
    add("--data", type=Path, required=True, help="a text")
    add("--rank", type=int, default=16, help="rank of the adapters of all linear layers of the blocks [default: 16]")
    add("--full", action="store_true", help="train all parameters, without adapters")
    add("--checkpointing", action="store_true", help="recompute each block in the backward pass")
    add("--batch", type=int, default=4, help="samples of a step [default: 4]")
    add("--context", type=int, default=512, help="tokens of a sample [default: 512]")
    add("--steps", type=int, default=5, help="steps that are timed, after one that is not [default: 5]")
    add("--learning-rate", type=float, default=2e-4, help="[default: 2e-4]")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.config.use_cache = False
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if not args.full:
        model.enable_input_require_grads() if args.checkpointing else None
        config = peft.LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules=LINEAR, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.learning_rate, weight_decay=0.01)
    text = args.data.read_text()[: 8 * args.batch * args.context * (args.steps + 4)]
    ids = torch.tensor(tokenizer(text)["input_ids"])
    windows = ids[: len(ids) // args.context * args.context].view(-1, args.context)

    def step(number: int) -> float:
        batch = windows[[(number * args.batch + i) % len(windows) for i in range(args.batch)]]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    reset, before = reset_peak_rss(), status("VmRSS")
    losses, times = [step(0)], []
    for number in range(1, args.steps + 1):
        started = time.perf_counter()
        losses.append(step(number))
        times.append(time.perf_counter() - started)
        print(f"step {number}: loss {losses[-1]:.4f}, {times[-1]:.2f} s", file=sys.stderr)
    peak_rss = status("VmHWM") if reset else None
    state = sum(value.numel() * value.element_size() for own in optimizer.state.values() for value in own.values())
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    in_step = allocator_peak(lambda: step(args.steps + 1))
    figures = {
        "peer": f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}",
        "processor": processor(),
        "flags": {name: str(value) for name, value in vars(args).items()},
        "trained": sum(value.numel() for value in trained),
        "step_s": spread(times),
        "losses": losses,
        "bytes": {
            "parameters": weights,
            "optimizer": state,
            "peak_above_them": in_step,
            "peak": weights + state + in_step,
            "rss_before": before,
            "rss_peak": peak_rss,
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
