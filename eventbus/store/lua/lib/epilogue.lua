--needs outcomes placing putting_off telling
--exports epilogue
-- The last writes of a call that is no turn: who needs what ended is told, what may go on is made ready, outcomes are
-- listed and sent, and somebody takes the turn that goes on with what was too much for this call.
epilogue = {}
function epilogue.end_call(ready, now)
  telling.flush(ready, now)
  placing.flush(ready, now, putting_off.put_off)
  outcomes.flush()
  telling.wake_chores(now)
end
