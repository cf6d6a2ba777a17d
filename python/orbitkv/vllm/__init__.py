"""The vLLM plug-in. Importing it costs nothing; vLLM loads the connector by name."""

_NAME = "OrbitKVConnector"


def register() -> None:
    """Entry point `vllm.general_plugins`: makes OrbitKVConnector known. May run often."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if _NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(_NAME, "orbitkv.vllm.connector", _NAME)
