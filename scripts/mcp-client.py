#!/usr/bin/env python3
"""Drives `evenkeel mcp` with the official client library (PyPI: mcp, 2.3 or later), as an assistant would.

    python3 -m venv /tmp/mcp && /tmp/mcp/bin/pip install mcp
    /tmp/mcp/bin/python scripts/mcp-client.py target/debug/evenkeel

Ends with status 0 when every tool answers with the schema of its command, and what changes the host is there with --apply only.
"""

import asyncio
import os
import sys
import tempfile

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SELF = f"pid:{os.getpid()}"
READING = {
    "ps": {},
    "why": {"target": SELF, "for": "1s"},
    "check": {},
    "history": {},
    "plan": {"scope": [SELF]},
}
CHANGING = {"run", "tune"}


async def session(binary, state, *options):
    """What the server offers, and what each reading tool answers."""
    server = StdioServerParameters(command=binary, args=["--state-dir", state, "mcp", *options])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        answers = {}
        for name, arguments in ({} if options else READING).items():
            answers[name] = await client.call_tool(name, arguments)
        refused = set()
        for name in set() if options else CHANGING:
            try:
                answer = await client.call_tool(name, {})
                if answer.is_error:
                    refused.add(name)
            except Exception as error:  # The library raises its own for an error of the protocol.
                assert "--apply" in str(error), error
                refused.add(name)
        return tools, answers, refused


async def main(binary):
    with tempfile.TemporaryDirectory() as state:
        tools, answers, refused = await session(binary, state)
        assert set(tools) == set(READING), set(tools)
        assert all(tool.annotations.read_only_hint and tool.output_schema for tool in tools.values())
        assert refused == CHANGING, refused
        for name, answer in answers.items():
            assert not answer.is_error, (name, answer.content)
            assert answer.structured_content["schema"] == f"evenkeel.{name}/v1", name
        tools, _, _ = await session(binary, state, "--apply")
        assert set(tools) == set(READING) | CHANGING, set(tools)
        assert not any(tools[name].annotations.read_only_hint for name in CHANGING)
    print("ok:", ", ".join(answers))


asyncio.run(main(sys.argv[1]))
