--needs shard commands accepting enqueuing fields holds joining passed pointers replacing succession
--exports merging
-- Fewer jobs from many emissions of one key: rows whose `meeting` is 3 to 5.
--   throttle   the first wins: the key makes no other job while its job is open, and not before `until`
--   debounce   the last wins: while nobody has begun the key's job, a row gives it another body and moves its due time
--   keep last  the same, without a time; and what comes while the job runs makes one next job, and replaces its body
--
--   no open job -> job (delayed | waiting) -- claimed --> runs -- a row --> runs, and `next` is delayed behind it
--                        | a row: another body                                     | a row: another body of `next`
-- `next` goes on where its predecessor ends (`succession.lua`).
-- What must hold:
-- - of one key at most one job has begun, and at most one has not; the latter has the body of the row that came last;
-- - a row that gives a job another body joins it, so each emitter hears the outcome;
-- - a body is replaced only where nobody holds the job: a claim reads it in the call that writes the hold;
-- - a row never puts an older body back: `seen` of the pointer has the last row of each emitter that merged, and the job
--   has the id of the row that made it; the ids of an emitter rise. So a repeat, also one that later rows have overtaken,
--   joins what is there.
-- Each row is read and written before the next one, so rows of one key in one call meet each other; what this call
-- adds by other rows is there by then. The first write is one that a full server refuses.
-- Crash windows: `replace-not-answered` (`seen`), `replace-meets-claim` (one call is first: the body, or a next job).
-- Rejected: a job for each row that the later one cancels, which ends emitters with an error; a next job that stands
-- only in the pointer, which nobody can cancel or look at.
merging = {}
local THROTTLE = 3

local function decide_throttled(choice, now)
  local job, _, state, text, seen = pointers.follow(choice.pointer, pointers.REUSE)
  choice.seen = seen
  if not job or state and (tonumber(commands.try('HGET', choice.pointer, 'until') or 0) or 0) <= now then return choice end
  return { join = job, target = choice.target, word = 'joined', state = state, text = text }
end

-- Whether somebody has begun the job, or may have: its body stays then.
local function has_begun(id, record)
  local is_idle = record.state == 'delayed' or record.state == 'waiting' and not record.token
  if not is_idle or record.is_later or record.began or record.stalls or (tonumber(record.attempts) or 0) > 0 then return true end
  return record.state == 'waiting' and holds.find(id) ~= nil
end

-- A repeat joins what the key stands for now.
local function join_again(choice, following)
  local record = following and fields.peek(following)
  if record and not record.ended then return { join = following, target = choice.target, word = 'joined' } end
  local job, _, state, text = pointers.follow(choice.pointer, pointers.REUSE)
  if not job then return choice end
  return { join = job, target = choice.target, word = 'joined', state = state, text = text }
end

local function meet(choice, row, now)
  local known = commands.try('HMGET', choice.pointer, 'job', 'next', 'seen') or {}
  local job, following, seen = known[1], known[2], known[3] or ''
  choice.seen = seen
  if passed.has_come(seen, row.id) or job and passed.has_come(string.gsub(job, '@.*', ''), row.id) then return join_again(choice, following) end
  local record, last = job and fields.fetch(job), following and fields.fetch(following)
  if last and last.ended then last = nil end
  if last and last.state ~= 'delayed' then job, record, last = following, last, nil end -- somebody made it go on
  if not last and (not record or record.ended) then return choice end
  if last or not has_begun(job, record) then
    local own = last and following or job
    return { join = own, target = choice.target, word = 'joined', replaced = last or record, seen = seen, pointer = choice.pointer }
  end
  local ripe = row.due or now
  choice.after, choice.row = job, { after = job, ripe = commands.whole(ripe), due = row.due or now + succession.PUT_OFF }
  for field, value in pairs(row) do choice.row[field] = choice.row[field] or value end
  return choice
end

local function decide(row, target, now)
  local id = row.id .. target.suffix
  if redis.call('EXISTS', shard.job_root .. id) == 1 then return nil end
  local choice = { id = id, target = target, row = row, pointer = shard.key('key', target.queue .. ':' .. row.key) }
  if row.meeting == THROTTLE then return decide_throttled(choice, now) end
  return meet(choice, row, now)
end

-- What the pointer of a new job tells the rows that come.
local function note(choice, row, now)
  if row.meeting == THROTTLE then redis.call('HSET', choice.pointer, 'until', commands.whole(now + row.span)) end
  if choice.seen then redis.call('HSET', choice.pointer, 'seen', passed.add(choice.seen, row.id)) end
end

-- merges: index and row of each.
function merging.add(merges, fresh, emitter, now, answer)
  for _, each in ipairs(merges) do
    for pointer in pairs(pointers.planned) do pointers.planned[pointer] = nil end
    local taken = { jobs = {}, joins = {}, fresh = fresh, decide = decide }
    accepting.take_row(taken, each.index, each.row, emitter, now, answer)
    local refused = enqueuing.add(taken.jobs, emitter, now, answer)
    for _, job in ipairs(taken.jobs) do
      if not refused[job.id] then note(job, each.row, now) end
    end
    for _, join in ipairs(taken.joins) do
      if join.choice.replaced then replacing.change_body(join.choice, each.row, now) end
      if not joining.add_emitter(join.job, join.emitter) and join.state_at then answer[join.state_at] = 'unlisted' end
    end
  end
end
