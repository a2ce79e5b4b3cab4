"""Chat templates as published models write them, and a tokenizer that knows ChatML."""

import json
from pathlib import Path

import tokenizers as hf

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_PROMPT = CHATML.split("{% if add")[0]
ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '### Instruction:\n' + m.content + '\n\n' }}{% else %}"
    "{{ '### Response:\n' + m.content + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
FORGETFUL = (  # leaves out the thoughts of all answers but the last
    "{% for m in messages %}{{ '<' + m.role + '>' }}"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def write_folder(folder: Path, tokenizer_json: Path, template: str) -> Path:
    """A model's folder: GPT-2 with the special tokens of ChatML, and a chat template."""
    library = hf.Tokenizer.from_file(str(tokenizer_json))
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    folder.mkdir(exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
