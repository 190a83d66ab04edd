--needs shard commands changes fields handing hold lines records
--exports blame
-- Stalls: a worker lost its jobs without a word. A stall is no attempt. And who is to blame: one of the jobs may have
-- killed the worker.
--
-- A worker that ends takes all along that it ran. It blames all of them, unless it watched some: then these alone.
-- A job is a suspect from its third blame on, and is watched while it runs no longer than it may have run when it was
-- blamed last, and a beat (`engine/claiming/suspects.py`). The first two blames change nothing but the count.
--   heard   when the worker renewed its leases last. It ended within a beat from then on: it would have renewed else
--   fatal   heard + beat - claimed: how long the job may have run at most when its worker ended
--   watched heard - claimed <= fatal. So who kills after the same time is always among these: he runs at most a beat
--           longer than that. And these were all watched to the end: they ran at most fatal + a beat
--   crowd   a quarter of the blamed: so many of them may run together. A poison among n is found in log4(n) ends more
-- Never blamed: what was handed over and not confirmed, which is no stall, and what a renewal gives back. Such a stall is
-- counted all the same, and as spared, for the job may have run.
--
-- What must hold: all calls that rescue one worker blame the same jobs, and count them alike, though a call takes a
-- bounded number and who was rescued before is gone. So the first one of several calls leaves the count in `#:blame`,
-- beside the end of the leases that it is for.
-- Crash windows: `rescue-half` (who rescued dies between two calls: anybody goes on by `#:blame`), `rescued-while-alive`
-- (the worker goes on between two calls: its leases end later now, so `#:blame` holds no more; what is left to it is
-- counted anew when it ends), `renewed-late` (it ended more than a beat after it was heard, for its renewals failed:
-- then a job may have run longer than `fatal`, and its blame may be another one's), `killed-by-another` (a job that was
-- not watched kills after another time than before, or for the first time: who is watched alone takes its blame). So
-- one blame by itself is no proof, unless the worker ran nothing else: it takes two to fail.
--
-- Weighed: a mark in the hold of each watched job (no record would have to be read here, but each claim would write it);
-- counting what is left instead of a field (a worker of 1,000 jobs would look like one of 200 to its last call).

blame = {}

-- Whether it is blamed where nobody was watched: all that it was known to run.
local function may_blame(holder, hold)
  return not handing.is_open(holder.worker, hold)
end

local function is_watched(holder, hold, record)
  return lines.is_suspect(record) and holder.heard - hold.time <= (tonumber(record.fatal) or 0)
end

-- What a call before this one counted for the same end of the worker.
local function recall(holder)
  local kept = commands.try('HGET', shard.key('held', holder.worker), '#:blame')
  local ends, kind, count = string.match(kept or '', '^(%d+) (%a+) (%d+)$')
  if ends ~= commands.whole(holder.ends) then return nil end
  return { count = tonumber(count), is_watched = kind == 'watched', is_kept = true }
end

-- holder: worker, end of its leases, when it was heard. own: all that it holds. Writes nothing.
function blame.read(holder, own)
  local kept = recall(holder)
  if kept then return kept end
  local names, all, watched = {}, 0, 0
  for i, hold in ipairs(own) do names[i] = shard.job_root .. hold.id end
  for i, text in ipairs(commands.get_all(names)) do
    local record = text and may_blame(holder, own[i]) and fields.fetch(own[i].id, text)
    if record and record.state == 'waiting' then
      all = all + 1
      if is_watched(holder, own[i], record) then watched = watched + 1 end
    end
  end
  local is_alone = all == 1 -- the worker ran nothing else
  if watched > 0 then return { count = watched, is_watched = true, is_alone = is_alone } end
  return { count = all, is_watched = false, is_alone = is_alone }
end

-- holds: those that a call takes. Notes the blame for the calls behind it.
function blame.keep(holds)
  for _, hold in ipairs(holds) do
    local holder = hold.holder
    if holder.is_cut and not holder.blame.is_kept then
      local kind = holder.blame.is_watched and 'watched' or 'all'
      redis.call('HSET', shard.key('held', holder.worker), '#:blame', commands.whole(holder.ends) .. ' ' .. kind .. ' ' .. holder.blame.count)
      holder.blame.is_kept = true
    end
  end
end

-- The blame of one job, or nil: how many share it, and how long the job may have run.
function blame.of(holder, hold, record)
  if not may_blame(holder, hold) then return nil end
  if holder.blame.is_watched and not is_watched(holder, hold, record) then return nil end
  local mine = holder.blame
  return { count = mine.count, is_alone = mine.is_alone, ran = math.max(0, holder.heard - hold.time) + holder.beat }
end

-- Whether a job fails by this blame: the worker ran nothing else, or the job was blamed by itself before, or there were
-- too many blames.
function blame.is_spent(job, mine, max_stalls)
  if not mine then return false end
  local count, is_proven = lines.blames(job), mine.is_alone or (tonumber(job.alone) or 0) > 1
  return count > max_stalls and mine.count == 1 and is_proven or count > 4 * max_stalls
end

-- Counts the stall, and keeps what is known of it in the job's log; returns it as text.
-- job: what `read` tells of it, with its id. What its holder still sends is refused. mine: as `blame.of` returns it.
function blame.note_stall(job, hold, worker, message, mine, now)
  job.stalls = (tonumber(job.stalls) or 0) + 1
  if not mine then job.spared = (tonumber(job.spared) or 0) + 1 end
  local began = Hold.time(hold)
  fields.change(job.id, 'stalls', job.stalls, 'token', false, 'began', began, 'first', job.first or began)
  if not mine then
    fields.change(job.id, 'spared', job.spared)
  elseif mine.count == 1 and not mine.is_alone then
    job.alone = (tonumber(job.alone) or 0) + 1
    fields.change(job.id, 'alone', job.alone)
  end
  if mine and lines.is_suspect(job) then
    fields.change(job.id, 'crowd', math.max(1, math.floor(mine.count / 4)), 'fatal', commands.whole(mine.ran))
  end
  local text = cjson.encode({
    type = 'StalledError', message = string.gsub(message, '# times', job.stalls == 1 and '1 time' or job.stalls .. ' times'),
    attempts = tonumber(job.attempts) or 0, stalls = job.stalls,
  })
  text = records.add_times(text, job.due, began, now, worker, 'stalled')
  records.note_error(job.id, text)
  if changes.is_on() then changes.note('stalled', job.queue, job.id, 'waiting', { worker = worker, text = text }) end
  return text
end
