--needs lines presence
--exports capacity
-- How many jobs wait in queues with a limit, and whether anybody works on them: each is asked once for a queue and call.
capacity = {}
local waited = {} -- queue -> how many wait there before this call
local served = {} -- queue -> whether anybody works on it

-- Asked first before the call writes anything.
function capacity.count_waiting(queue)
  waited[queue] = waited[queue] or lines.count(queue)
  return waited[queue]
end

function capacity.is_served(queue, now)
  if served[queue] == nil then served[queue] = presence.count(queue, now, '') > 0 end
  return served[queue]
end

-- The queue in which nobody would run what a row adds or joins there. A row that has come before, in any of its queues, is
-- no new question.
function capacity.find_unserved(queues, choices, now)
  local targets = queues.targets
  if #choices < #targets then return nil end
  for i, target in ipairs(targets) do
    if not choices[i].state and not capacity.is_served(target.queue, now) then return target.queue end
  end
  return not targets[1] and queues.name or nil
end
