--needs shard commands floors plain retention
--exports completed
-- `completed:<queue>`: the jobs of a queue that completed, oldest first, as a list. An entry is when the job ended, 13
-- digits, and the job. `cuts` counts what was ever cut from the head of each list, so that an entry keeps its number
-- while both ends of the list move.
-- What must hold: an entry stands for a job that its record confirms: it completed, at that time. A root of a tree that
-- runs again is taken out, unless the list is very long; then its entry means nothing, and goes with the others.
completed = {}
local LONGEST = bounds.SEARCHED -- entries of a list in which one is looked for

-- Entries as a list of job, ended.
function completed.read(queue, first, last)
  local found = commands.try('LRANGE', shard.key('completed', queue), first, last) or {}
  for i, entry in ipairs(found) do found[i] = { id = string.sub(entry, 14), ended = tonumber(string.sub(entry, 1, 13)) } end
  return found
end

local function read_end(entry)
  return tonumber(string.sub(entry, 1, 13)) or 0
end

-- How many of the oldest entries may go: by count, and by age.
local function count_old(entries, over, age, now)
  local old = 0
  for i, entry in ipairs(entries) do
    local ended = read_end(entry)
    if i > over and ended >= now - age then break end
    -- Somebody may ask for it; but one that ended far ahead did so before the clock was set back.
    if ended >= now - floors.WINDOW and ended <= now + floors.WINDOW and ended >= floors.read(now) then break end
    old = i
  end
  return old
end

-- The first entries, without those of jobs that run again or did so since. Returns their jobs and the records of these.
local function list_confirmed(entries, count)
  local names, ids, records = {}, {}, {}
  for i = 1, count do names[i] = shard.job_root .. string.sub(entries[i], 14) end
  for i, text in ipairs(commands.get_all(names)) do
    if not text or plain.is_over(text, read_end(entries[i])) then
      ids[#ids + 1], records[#records + 1] = string.sub(entries[i], 14), text
    end
  end
  return ids, records
end

-- Removes at most `limit` jobs past `count` or `age` (ms); returns how many. `length`: of the list, where it is known.
-- The first entry mostly says that nothing may go.
function completed.retain(queue, count, age, limit, now, length)
  local name = shard.key('completed', queue)
  local first = commands.try('LRANGE', name, 0, 0) or {}
  length = first[1] and (length or redis.call('LLEN', name))
  if not first[1] or count_old(first, length - count, age, now) == 0 then return 0 end
  local entries = redis.call('LRANGE', name, 0, limit - 1)
  local old = count_old(entries, math.min(length - count, limit), age, now)
  redis.call('LTRIM', name, old, -1)
  commands.try('HINCRBY', shard.root .. ':cuts', queue, old)
  local ids, records = list_confirmed(entries, old)
  retention.forget(ids, records)
  return #ids
end

function completed.unlist(queue, id, ended)
  local name = shard.key('completed', queue)
  if (commands.try('LLEN', name) or LONGEST) < LONGEST then redis.call('LREM', name, -1, string.format('%013.0f', ended) .. id) end
end

local ENDED = { 'completed', 'failed', 'cancelled' }

-- Removes what may go of the states in which jobs of the queue have just ended. Few ends do not ask
-- each time, but in one turn of eight (`is_asked`), and for all eight: what ends may not outrun what goes. `lengths`: of
-- the lists to which the turn has added.
function completed.retain_ended(queue, is_asked, now, lengths)
  for _, state in ipairs(ENDED) do
    local count, is_completed = queue[state], state == 'completed'
    if count and (is_asked or count >= 8) then
      local keep = is_completed and queue.keep_completed or queue.keep_failed
      local age = is_completed and queue.age_completed or queue.age_failed
      local limit = (count >= 8 and 2 or 16) * count + 16
      if is_completed then
        completed.retain(queue.name, keep, age, limit, now, lengths[queue.name])
      else
        retention.cut(state, queue.name, keep, age, limit, now)
      end
    end
  end
end
