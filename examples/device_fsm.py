"""A decoding loop whose constraints live on the device: between BEGIN and END nothing
waits for the CPU.

    python examples/device_fsm.py

Each row of the batch is a state, an int32 number. fsm.rows finds the mask of each
state, and fsm.advance moves the states by the drawn tokens. On a GPU the loop's body
can be captured in a CUDA graph.
"""

import torch

import structout
from structout.cli.demo_model import load_demo_model
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.token_index import TokenIndex
from structout.grammar.vocabulary import Vocabulary

NUM_STEPS = 24


@torch.inference_mode()
def main() -> None:
    model, tokenizer, _ = load_demo_model()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, model.lm_head.out_features)
    constraints = [Automaton.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), Automaton.from_choices(["red", "green"])]
    ids = torch.tensor([tokenizer.encode("The answer: ")] * len(constraints), device=model.device)
    num_prompt_tokens = ids.shape[1]
    seeds = torch.arange(len(constraints), device=model.device)

    # BEGIN
    fsm = structout.DeviceFSM(vocabulary, model.device)
    states = fsm.new_states(len(constraints))
    for i, automaton in enumerate(constraints):
        states[i] = fsm.add(TokenIndex(automaton, vocabulary)).start_state
    for _ in range(NUM_STEPS):
        logits = model(ids).logits[:, -1]
        tokens = structout.masked_sample(logits, fsm.masks, fsm.rows(states), seed=seeds, position=ids.shape[1])
        fsm.advance(states, tokens)
        ids = torch.cat([ids, tokens.unsqueeze(1)], dim=1)
    # END

    for row in ids[:, num_prompt_tokens:].tolist():
        length = next(i for i, token in enumerate(row) if token in vocabulary.stop_token_ids)
        print(vocabulary.text_of(row[:length]))


if __name__ == "__main__":
    main()
