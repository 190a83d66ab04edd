--needs outcomes putting_off ready telling
--exports end_call
-- The last writes of a call that is no turn: who needs what ended is told, what may go on is made ready, outcomes are
-- listed and sent, and somebody takes the turn that goes on with what was too much for this call.
function end_call(ready, now)
  telling.flush(ready, now)
  place_ready(ready, now, put_off)
  outcomes.flush()
  telling.wake_chores(now)
end
