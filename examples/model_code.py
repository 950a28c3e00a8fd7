"""Constrained decoding in a model's own code: the ten lines between BEGIN and END.

    python examples/model_code.py

The model is any module that gives logits; the manager says which tokens its text may
go on with, and masked_sample draws one of them.
"""

import torch

import structout
from structout import StructuredOutputManager, StructuredOutputsParams
from structout.cli.demo_model import load_demo_model


@torch.inference_mode()
def main() -> None:
    model, tokenizer, _ = load_demo_model()
    ids = tokenizer.encode("A dice: ")
    num_prompt_tokens = len(ids)

    # BEGIN
    manager = StructuredOutputManager(tokenizer, vocab_size=model.lm_head.out_features)
    manager.add_request("dice", StructuredOutputsParams(regex="(one|two|three|four|five|six) of six"))
    manager.wait_ready("dice")
    while True:
        logits = model(torch.tensor([ids])).logits[:, -1]
        mask = manager.grammar_bitmask(["dice"]).to(logits.device)
        token = int(structout.masked_sample(logits, mask, seed=7, position=len(ids)))
        manager.accept_tokens("dice", [token])
        if manager.is_terminated("dice"):
            break
        ids.append(token)
    # END

    print(tokenizer.decode(ids[num_prompt_tokens:]))


if __name__ == "__main__":
    main()
