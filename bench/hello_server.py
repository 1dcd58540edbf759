"""The smallest MCP server on the same SDK: the peer for start-up and call time."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel


class Greeting(BaseModel):
    """What `hello` returns."""

    text: str


server = MCPServer("hello")


@server.tool()
def hello(name: str) -> Greeting:
    """Greet somebody."""
    return Greeting(text=f"hello {name}")


if __name__ == "__main__":
    server.run()
