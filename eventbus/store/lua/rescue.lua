-- Takes what workers hold whose leases ran out: back to ready, failed past the stall limit, or cancelled if that was
-- asked. All that one worker holds is taken, in bounded calls: what a call leaves is the next one's, or is still the
-- worker's own if it lives and renews.
-- What was handed over and not confirmed is given back, which is no stall. A stall is no attempt, and its job goes to the head of its queue. But one that is blamed for three of them may have
-- killed its process: it waits with the suspects (`blame.lua`).
-- Any worker may do this, also several at once. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now lease limit max_stalls key_ttl
-- answer: ms until the leases of the next worker end (-1: none), then for each job: id verdict worker age lag
--   verdict: rescued | failed | cancelled | apart (as failed: its record cannot be read)
--   worker held it, renewed it `age` ms ago, and its event loop was `lag` ms behind when last heard
--include shard args commands guard fields handing hold holds blame cells expired lines placing endings records stopping heard epilogue marks slots

local WORKERS = 64 -- that one call looks at
local now = args.take_now()
local lease, limit, max_stalls, key_ttl = args.take(), args.take(), args.take(), args.take()
local workers = shard.root .. ':workers'
local found = redis.call('ZRANGEBYSCORE', workers, '-inf', commands.whole(now), 'WITHSCORES', 'LIMIT', 0, WORKERS)
local list, over = expired.read(found, limit, lease, now)
local stalled, bad, strays, open = {}, {}, {}, {}
for _, hold in ipairs(list) do
  local record, why, queue = records.read(hold.id)
  if record and record.state ~= 'waiting' and not records.is_placed(hold.id, record) then
    record, why, queue = nil, 'held in the state ' .. record.state, record.queue
  end
  if not record then
    bad[#bad + 1] = { id = hold.id, queue = queue, why = why, holder = hold.holder, hold = hold.hold }
  elseif record.state == 'waiting' and handing.is_open(hold.holder.worker, hold) then
    open[#open + 1] = hold
  elseif record.state == 'waiting' then
    record.id, record.lease, record.holder = hold.id, fields.fetch(hold.id), hold.holder
    record.lease.hold, record.time, record.place = hold.hold, hold.time, hold.place
    record.blame = blame.of(hold.holder, hold, record)
    stalled[#stalled + 1] = record
  else
    strays[#strays + 1] = hold
  end
end

shard.begin_writing()
heard.note(now, lease)
heard.cut_leases(now, lease)
local grace = heard.left_of_grace(now, lease)
if grace > 0 then return { grace } end

blame.keep(list)

local function describe(holder, mine)
  local whom = mine and (mine.count == 1 and 'this job alone' or mine.count .. ' jobs of that worker, this one among them,')
  return string.format(
    'the lease ran out # times; the last one was held by worker %s, which renewed it %.0f ms before, '
      .. 'its event loop %.0f ms behind when last heard; %s may be the cause',
    holder.worker, holder.age, holder.lag, whom or 'other jobs of that worker'
  )
end

local ready, backs, answer = {}, {}, { 0 }
local function rescue(job)
  local text = blame.note_stall(job, job.lease.hold, job.holder.worker, describe(job.holder, job.blame), job.blame, now)
  redis.call('HDEL', shard.key('held', job.holder.worker), job.id) -- what its holder still sends is refused
  slots.release(job.lease.hold, now)
  lines.unlisted[job.id] = 'nowhere'
  local lease = job.lease
  if lease.tree and (marks.causes[job.id] or '') ~= '' then lease.stop = marks.causes[job.id] end -- since it was read
  if lease.cancel and lease.cancel ~= lease.root then
    return endings.write_cancelled(job.id, lease, now, key_ttl)
  elseif lease.root and not lease.tree and marks.read(lease.root) ~= '' then
    return endings.write(job.id, lease, 'failed', text, now, key_ttl) -- not run again; whether it took effect is not known
  elseif lease.tree and lease.stop and not lease.acked and not lease.knows then
    stopping.settle_root(job.id, now)
  elseif blame.is_spent(job, job.blame, max_stalls) and lease.tree and lease.stop == 'cancelled' then
    local text = commands.try('GET', shard.key('result', job.id)) or '' -- who cancelled it was told that it ends so
    if #text > 2 then text = string.sub(text, 1, -2) .. ',"stalls":' .. job.stalls .. '}' end
    return endings.write(job.id, lease, 'cancelled', text, now, key_ttl)
  elseif blame.is_spent(job, job.blame, max_stalls) then
    if not (lease.tree and lease.on == 'wake' and stopping.stop_tree(job.id, 'failed', job.id, text, now)) then
      return endings.write(job.id, lease, 'failed', text, now, key_ttl)
    end
    stopping.settle_root(job.id, now)
  else
    backs[#backs + 1] = job
  end
  return 'rescued'
end

for _, each in ipairs(strays) do
  redis.call('HDEL', shard.key('held', each.holder.worker), each.id)
  slots.release(each.hold, now)
end
for _, job in ipairs(bad) do
  redis.call('HDEL', shard.key('held', job.holder.worker), job.id)
  slots.release(job.hold, now)
  records.quarantine(job.id, job.queue, job.why, now)
  for _, value in ipairs({ job.id, 'apart', job.holder.worker, job.holder.age, job.holder.lag }) do answer[#answer + 1] = value end
end
for _, job in ipairs(stalled) do
  local verdict = rescue(job)
  cells.note(job.queue, 'stalled')
  cells.note(job.queue, verdict) -- failed or cancelled: no worker settles it
  for _, value in ipairs({ job.id, verdict, job.holder.worker, job.holder.age, job.holder.lag }) do
    answer[#answer + 1] = value
  end
end
table.sort(backs, Hold.is_older) -- of all workers
for _, job in ipairs(backs) do placing.line_up(ready, job.queue, job, true) end
if open[1] then
  --include giving_back
  for _, hold in ipairs(open) do giving_back.give_unconfirmed(hold.holder.worker, { hold.id }, ready, now) end
end
for _, worker in ipairs(over) do holds.unregister(worker) end -- its next turn registers it again, if it lives
epilogue.end_call(ready, now)
slots.flush(now)
local first = redis.call('ZRANGE', workers, 0, 0, 'WITHSCORES')
answer[1] = first[2] and math.max(0, tonumber(first[2]) - now) or -1
return answer
