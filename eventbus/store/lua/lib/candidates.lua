--needs base
--exports read_ids read_records read_on
-- The ids of queues that may be claimed, and their records. Writes nothing.
local AHEAD = 200 -- so many ids of a queue are read at most to get past suspects

-- Reads ids of a queue with their places in it; false where somebody else's value stands there.
function read_ids(queue, first, last)
  local found = try('ZRANGE', key('ready', queue.name), first, last, 'WITHSCORES')
  for i = 1, #(found or {}), 2 do
    queue.ids[#queue.ids + 1], queue.orders[#queue.orders + 1] = found[i], found[i + 1]
  end
  return found ~= nil
end

-- Reads the records of the next ids of queues, `counts` of each: one command for all.
function read_records(queues, counts)
  local names, places = {}, {}
  for i, queue in ipairs(queues) do
    for j = #queue.records + 1, math.min(#queue.ids, #queue.records + counts[i]) do
      names[#names + 1], places[#places + 1] = job_root .. queue.ids[j], queue
    end
  end
  for i, text in ipairs(get_all(names)) do
    local records = places[i].records
    records[#records + 1] = text
  end
end

-- Suspects that are left must not hold up what waits behind them: reads on, up to a bound.
-- Returns the next id, if there is one.
function read_on(queue)
  local seen = #queue.ids
  if not queue.left or seen >= AHEAD then return nil end
  read_ids(queue, seen, seen + 49)
  read_records({ queue }, { #queue.ids })
  return queue.ids[seen + 1]
end
