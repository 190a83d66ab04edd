--needs book limit_keys slots windows
--exports quotas
-- What a claim does with limits: it asks no more of a queue than its limit leaves, and counts what it takes (`slots.lua`).
local CLAIM_WIDTH = 8 -- fields of a claim (`candidate.lua`)
quotas = {}

-- Bounds what a call asks of queues with limits.
function quotas.cut(queues, now)
  slots.end_rests()
  for _, queue in ipairs(queues) do
    local counts = queue.quota > 0 and bit.band(queue.flags, book.LIMITED) ~= 0 and slots.read(queue.name, now)
    if counts then queue.counts, queue.quota = counts, math.min(queue.quota, slots.count_free(counts)) end
  end
end

-- Counts what a call is about to claim, names the queue in its holds, and says `more` of no queue that is closed now.
function quotas.claim(plan, queues, now)
  plan.places = {}
  local rows, last_lane, last_queue, place = plan.rows, nil, nil, nil -- most stand beside others of their lane
  for i, id in ipairs(plan.ids) do
    local queue = queues[rows[(i - 1) * CLAIM_WIDTH + 2]]
    local counts = queue.counts
    if counts then
      local lane = plan.lanes[id]
      if lane ~= last_lane or queue ~= last_queue then
        last_lane, last_queue, place = lane, queue, '\0' .. queue.name .. (lane and '\0' .. lane or '')
      end
      plan.places[i] = place
      counts.running, counts.is_changed = counts.running + 1, true
      if counts.windows[1] then windows.count_start(counts.windows) end
      if lane then limit_keys.note_start(counts, queue.name, lane, now) end
    end
  end
  local more = {}
  for _, index in ipairs(plan.more) do
    local counts = queues[index].counts
    if not counts or slots.count_free(counts) > 0 then more[#more + 1] = index end
  end
  plan.more = more
  for _, queue in ipairs(queues) do
    if queue.counts and queue.counts.is_foreign then plan.foreign[#plan.foreign + 1] = queue.name end
  end
end
