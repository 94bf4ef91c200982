"""A model's tokenizer, its chat template and the formats of its answers.

All come from the model's directory and from the operator's settings.
"""

from pathlib import Path
from typing import NamedTuple

from engine.system.freed_memory import return_freed_memory
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.template_variables import ChatSettings, variables_in
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer


class ModelChats(NamedTuple):
    """The tokenizer, chat template and answer formats of a model.

    A model without a template refuses chats.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    forms: AnswerForms


def read_chats(
    model_dir: Path, settings: ChatSettings, *, parse_special: bool = False
) -> ModelChats:
    """Read a model's files; raise ModelFileBroken or UnknownToolFormat for bad files."""
    own = None if settings.template is None else Path(settings.template)
    tokenizer = Tokenizer.load(model_dir, parse_special=parse_special, template=own)
    variables = variables_in(settings.variables)
    template = ChatTemplate.load(model_dir, tokenizer.control, variables, own)
    forms = AnswerForms.of(template, tokenizer, settings.tool_format)
    if template is not None and forms.tools is not None:
        template = template.telling(forms.tools)
    # for a vocabulary of 200,000 tokens, 262 of 323 MiB are free by now
    return_freed_memory()
    return ModelChats(tokenizer, template, forms)
