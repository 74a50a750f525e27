"""The protocols of agents and add-ons, and the data that agents exchange with the training loop.

Off-policy training needs only an `Agent`. Other parts of the library need a little more. Each of these protocols says
what one such part needs:

| protocol | needed by |
|---|---|
| `OnPolicyAgent` | training from rollouts, as PPO does |
| `PolicyAgent` | add-ons that compare the policy of another agent with the policy of this one |
| `LearnerAgent`, with states `LearnerState` | `algorithms.agents.optimization`, and the add-ons of the agent itself |
| `TargetAgent`, with states `TargetState` | `optimization.follow`, which moves target networks |
| `MemoryAgent`, `OnPolicyMemoryAgent` | the wrapper `Recurrent` |
| `HasParams`, a state | the wrapper `Averaged` |
| `ReportsNorms` | the wrapper `DataParallel` |
| `WrapperAgent` | code that asks what is inside of an agent: `DataParallel`, and behaviors made from agents |

Parameters come in groups, and a group has the same name in every agent:

* `actor`: the parameters of the policy.
* `critic`: the parameters of the critics. If `C` critics are stacked, the leaves are `[C, ...]`.
* `addons`: a tuple with one entry for each add-on.
* Groups that only one algorithm has, such as `log_alpha` of SAC.
"""

from algorithms.types.addons import Addon
from algorithms.types.agents import (
    Agent,
    LearnerAgent,
    MemoryAgent,
    OnPolicyAgent,
    OnPolicyMemoryAgent,
    PolicyAgent,
    ReportsNorms,
    TargetAgent,
    WrapperAgent,
)
from algorithms.types.data import GroupRule, Metrics, Roles, StepInfo
from algorithms.types.states import Groups, HasParams, LearnerState, TargetState

__all__ = [
    "Addon",
    "Agent",
    "GroupRule",
    "Groups",
    "HasParams",
    "LearnerAgent",
    "LearnerState",
    "MemoryAgent",
    "Metrics",
    "OnPolicyAgent",
    "OnPolicyMemoryAgent",
    "PolicyAgent",
    "ReportsNorms",
    "Roles",
    "StepInfo",
    "TargetAgent",
    "TargetState",
    "WrapperAgent",
]
