"""The guide of the agent: its program prints what the page says."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "run-elastic-agents.md"


def test_the_program_of_the_guide(agents):
    blocks = dict(re.findall(r"^```(py|text)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))
    program = agents.folder / "launch_elastic.py"
    program.write_text(blocks["py"].replace("max_restarts=3", 'max_restarts=3, local_addr="127.0.0.1"'))
    agent = agents.program(str(program))
    assert agent.end() == 0, agent.told()
    assert agent.stdout == blocks["text"], agent.told()
