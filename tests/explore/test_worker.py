"""One job after the other, in a thread of their own."""

import asyncio
import threading

from vitlab.explore.explorer import Worker


def test_jobs_are_done_in_their_order_and_errors_reach_who_asked() -> None:
    async def ask() -> None:
        worker, done = Worker(), []
        worker.start()

        def fail() -> None:
            raise ValueError("why")

        found = await asyncio.gather(
            worker.do(lambda: done.append(1) or threading.current_thread().name),
            worker.do(fail),
            worker.do(lambda: done.append(2) or 7),
            return_exceptions=True,
        )
        assert (found[0], str(found[1]), found[2]) == ("vitlab-explore", "why", 7)
        assert done == [1, 2]
        worker.stop()

    asyncio.run(ask())


def test_a_job_that_nobody_waits_for_is_not_begun() -> None:
    async def ask() -> None:
        worker, gate, done = Worker(), threading.Event(), []
        worker.start()
        first = asyncio.create_task(worker.do(gate.wait))
        given_up = asyncio.create_task(worker.do(lambda: done.append("given up")))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        gate.set()
        await first
        assert await worker.do(lambda: 3) == 3
        assert done == []
        worker.stop()

    asyncio.run(ask())
