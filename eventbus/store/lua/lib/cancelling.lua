-- Cancelling: a job that nobody runs ends at once; a running one is marked, and its worker told.
-- Whoever settles or rescues a marked job ends it as cancelled, whatever it says: so the race
-- with its completion is decided by which of two state changes comes first. A root is marked with
-- its whole tree; a member that completes all the same is recorded so, for it must be undone.

-- `call` names who asks, `text` is the outcome that waiters hear; the first one wins. Returns what
-- became of the job: ended (by this very call) | asked (it runs, and its worker was told; or its tree
-- stops) | over (it had ended, or its tree was stopping) | unknown (no record).
local function cancel(id, call, text, now, key_ttl)
  local record = read_lease(id)
  if not record then return 'unknown' end
  if record.tree and OPEN[record.state] then
    if stop_tree(id, 'cancelled', call, text, now) then return 'asked' end
    local is_repeat = record.stopper == call or try('HGET', job_root .. id, 'hardener') == call
    return is_repeat and 'asked' or 'over'
  end
  if record.root and OPEN[record.state] and try('HGET', job_root .. record.root, 'pending') then
    redis.call('HSET', job_root .. id, 'cancel', call)
    stop_tree(record.root, 'failed', id, text, now) -- it is not whole yet, and nobody may begin it
    return 'ended'
  end
  if record.state == 'active' then
    if not record.cancel then
      redis.call('HSET', job_root .. id, 'cancel', call)
      redis.call('SET', key('result', id), text) -- free until the end, and larger than a field may be
    end
    tell_worker(record.token, 'cancel:' .. id, now)
    return 'asked'
  end
  if not OPEN[record.state] then -- ended; a repeat whose first answer was lost hears that answer again
    return (record.cancel == call or record.stopper == call) and 'ended' or 'over'
  end
  take_out(id, record)
  redis.call('DEL', key('needs', id))
  redis.call('HSET', job_root .. id, 'cancel', call)
  finish(id, record, 'cancelled', text, now, key_ttl)
  return 'ended'
end
