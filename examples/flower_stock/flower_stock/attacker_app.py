"""An attacking client: sign flipping and scaling, to try a strategy on."""

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from flower_stock.client_app import evaluate
from flower_stock.client_app import train as train_honestly

app = ClientApp()
app.evaluate()(evaluate)


@app.train()  # type: ignore[untyped-decorator]  # checked without flwr
def train(message: Message, context: Context) -> Message:
    """Send x + factor · (y − x) in place of y, where the node has an attack factor.

    A client sees its own data alone. Its update stands for the mean μ of the honest
    ones, so that a factor of −ε is inner product manipulation, −εμ.
    """
    reply = train_honestly(message, context)
    factor = float(context.node_config.get("attack-factor", 1.0))
    sent = message.content["arrays"].to_torch_state_dict()
    trained = reply.content["arrays"].to_torch_state_dict()
    turned = {key: x + factor * (trained[key] - x) for key, x in sent.items()}
    reply.content["arrays"] = ArrayRecord(turned)
    return reply
