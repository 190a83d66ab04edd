--needs shard commands flag plain
--exports candidate
-- One job that may be claimed: read, and chosen, left, or noted as odd. Writes nothing.
-- Most are plain, and are read by place; `unusual.lua` reads all others.
candidate = {}
local WIDTH = 8 -- fields of a claim
local apart = {} -- flat list: the place of a claim among all, the key of its body

-- What a worker is told of a job. Absent: nothing counted, due when it was made. One that has begun before has a negative due.
function candidate.add_claim(rows, id, index, body, created, attempts, stalls, due, stop, began)
  local n = #rows
  due = (tonumber(due) or created) * (began and -1 or 1)
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, index, body, attempts
  rows[n + 5], rows[n + 6], rows[n + 7], rows[n + 8] = tonumber(stalls) or 0, created, due, stop or ''
end

-- Reads the candidate at place `i` of its line into `plan`; returns its size in bytes, or nil where it is not plain.
function candidate.choose(plan, line, i)
  local id, text = line.ids[i], line.records[i]
  if not text or line.entries[i] ~= id then return nil end
  local name, _, at, flags = plain.read(text)
  if name ~= line.queue or flags % (2 * FLAG.JOURNAL) >= FLAG.JOURNAL then return nil end
  local has_body = flags % (2 * FLAG.BODY) >= FLAG.BODY
  local size = has_body and plain.size(text, at) or not has_body and #text - at + 1
  local created, attempts = plain.count(text)
  if not size or size == 0 or attempts == 255 then return nil end
  local rows, n = plan.rows, #plan.rows -- as `candidate.add_claim` does, which would cost a call for each
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, line.index, has_body and '' or string.sub(text, at), attempts
  rows[n + 5], rows[n + 6], rows[n + 7], rows[n + 8] = 0, created, created, ''
  n = #plan.ids + 1
  plan.ids[n] = id
  if has_body then apart[#apart + 1], apart[#apart + 2] = n, shard.key('body', id) end
  return size
end

local function drop_claim(plan, place, queues)
  local id, index = plan.ids[place], plan.rows[(place - 1) * WIDTH + 2]
  table.remove(plan.ids, place)
  for _ = 1, WIDTH do table.remove(plan.rows, (place - 1) * WIDTH + 1) end
  plan.odd[#plan.odd + 1], plan.is_unusual = { id = id, queue = queues[index].name }, true
end

-- Reads the bodies that have keys of their own: one command for all. A job without its body is odd.
function candidate.add_bodies(plan, queues)
  if not apart[1] then return end
  local names, missing = {}, {}
  for i = 2, #apart, 2 do names[#names + 1] = apart[i] end
  for i, body in ipairs(commands.get_all(names)) do
    local place = apart[2 * i - 1]
    if body then plan.rows[(place - 1) * WIDTH + 3] = body else missing[#missing + 1] = place end
  end
  for i = #missing, 1, -1 do drop_claim(plan, missing[i], queues) end
end
