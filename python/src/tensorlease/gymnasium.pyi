# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import Env
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv

from . import Client

__all__ = ["SharedVecEnv", "SharedVectorEnv"]

class SharedVecEnv(SubprocVecEnv):
    name: str
    client: Client
    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        start_method: str | None = None,
        *,
        name: str | None = None,
        client: Client | None = None,
        copy: bool = True,
    ) -> None: ...

class SharedVectorEnv(AsyncVectorEnv[Any, Any]):
    name: str
    client: Client
    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        *,
        name: str | None = None,
        client: Client | None = None,
        copy: bool = True,
        **options: Any,
    ) -> None: ...
