--needs base format retain
--exports completed
-- `completed:<queue>`: the jobs of a queue that completed, oldest first, as a list. An entry is when the job ended, 13
-- digits, and the job. `cuts` counts what was ever cut from the head of each list, so that an entry keeps its number
-- while both ends of the list move.
-- What must hold: an entry stands for a job that its record confirms: it completed, at that time. A root of a tree that
-- runs again is taken out, unless the list is very long; then its entry means nothing, and goes with the others.
completed = {}
local LONGEST = 100000 -- entries of a list in which one is looked for

-- Entries as a list of job, ended.
function completed.read(queue, first, last)
  local found = try('LRANGE', key('completed', queue), first, last) or {}
  for i, entry in ipairs(found) do found[i] = { id = string.sub(entry, 14), ended = tonumber(string.sub(entry, 1, 13)) } end
  return found
end

-- How many of the oldest entries may go: by count, and by age.
local function count_old(queue, count, age, limit, now)
  local over = math.min(redis.call('LLEN', key('completed', queue)) - count, limit)
  local entries, old = completed.read(queue, 0, limit - 1), 0
  for i, each in ipairs(entries) do
    local may_go = i <= over or (each.ended or 0) < now - math.max(age, WINDOW)
    if not may_go or (each.ended or 0) >= now - WINDOW then break end
    old = i
  end
  return entries, old
end

-- The first entries, without those of jobs that run again or did so since.
local function list_confirmed(entries, count)
  local names, ids = {}, {}
  for i = 1, count do names[i] = job_root .. entries[i].id end
  for i, text in ipairs(get_all(names)) do
    if not text or plain.is_over(text, entries[i].ended) then ids[#ids + 1] = entries[i].id end
  end
  return ids
end

-- Removes at most `limit` jobs past `count` or `age` (ms); returns how many.
function completed.retain(queue, count, age, limit, now)
  local first = completed.read(queue, 0, 0)[1]
  if not first or (first.ended or 0) >= now - WINDOW then return 0 end
  local entries, old = count_old(queue, count, age, limit, now)
  if old == 0 then return 0 end
  redis.call('LTRIM', key('completed', queue), old, -1)
  try('HINCRBY', root .. ':cuts', queue, old)
  local ids = list_confirmed(entries, old)
  forget(ids)
  return #ids
end

function completed.unlist(queue, id, ended)
  local name = key('completed', queue)
  if (try('LLEN', name) or LONGEST) < LONGEST then redis.call('LREM', name, -1, string.format('%013.0f', ended) .. id) end
end
