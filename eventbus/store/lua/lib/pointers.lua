--needs shard commands fields
--exports pointers
-- Idempotency keys: pointers from a key to the job it stands for.
pointers = {}
pointers.REUSE = 1 -- what an emission may ask for where its key stands for a job
pointers.SUPERSEDE = 2
pointers.planned = {} -- pointer -> job and print, decided earlier in this call
local left = bounds.CALL_BYTES -- bytes of outcomes that this call still tells; whoever joins a job behind that asks for its outcome

-- Returns the job that `pointer` stands for, its payload's print, its final state (nil
-- while open; `unlisted` where its outcome is too much for this call) and outcome. Nil when the key is free: unknown, its record lost, or its
-- job ended without completing, unless the emission asks to reuse it. The fifth value is in each case which emissions of
-- the key have come (`passed.lua`), or nil.
function pointers.follow(pointer, meeting)
  local plan = pointers.planned[pointer]
  if plan then return plan.job, plan.print, nil, nil, plan.seen end
  local values = commands.try('HMGET', pointer, 'job', 'print', 'state', 'text', 'seen') or {}
  local job, print, state, text, seen = values[1], values[2], values[3], values[4], values[5] or nil
  if not job then return nil end
  if not state then -- the record knows better: it may be lost, foreign, or set apart as failed
    local record = fields.peek(job)
    if not record then return nil, nil, nil, nil, seen end
    state, text = record.state, record.result ~= '' and record.result or nil
    if state ~= 'completed' and state ~= 'failed' and state ~= 'cancelled' then return job, print, nil, nil, seen end
  end
  local may = state == 'completed' or meeting == pointers.REUSE
  if not may then return nil, nil, nil, nil, seen end
  if left <= 0 then return job, print, 'unlisted', '', seen end
  text = text or commands.try('GET', shard.key('result', job)) or commands.try('GET', shard.key('outcome', job)) or ''
  left = left - #text
  return job, print, state, text, seen
end

-- Points the key at a new job; it has no expiry until that job ends. after: the job for which it stands until then.
-- seen: which emissions of the key have come, nil if it need not know.
function pointers.point(pointer, job, print, after, seen)
  if after then return redis.call('HSET', pointer, 'job', after, 'next', job, 'nextprint', print) end
  redis.call('DEL', pointer)
  if seen then redis.call('HSET', pointer, 'job', job, 'print', print, 'seen', seen) else redis.call('HSET', pointer, 'job', job, 'print', print) end
end
