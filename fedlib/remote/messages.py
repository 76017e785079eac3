"""What Flower carries: a line of JSON and a block of tensors."""
import json

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedlib.core.errors import UserError


def content(about: dict, block: bytes) -> RecordDict:
    """A message: a line of JSON and a block of tensors."""
    return RecordDict({"about": ConfigRecord({"json": json.dumps(about)}),
                       "block": ArrayRecord({"message": Array("uint8", (len(block),), "safetensors", block)})})


def opened(message: Message) -> tuple[dict, bytes]:
    """The inverse of `content`. UserError: it is none."""
    try:
        about = json.loads(message.content["about"]["json"])
        return {**about}, message.content["block"]["message"].data
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError("a message is not of this app") from error
