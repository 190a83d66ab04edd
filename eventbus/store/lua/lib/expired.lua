--needs shard commands blame holds
--exports expired
-- Reading what workers hold whose leases ran out, before a rescue writes anything.
expired = {}

local BEAT = 0.3 -- of a lease: a worker renews as often (`lease_keeper.py`)

-- Who held the jobs, when it renewed their leases for the last time, and how its event loop was then.
local function read_holder(worker, lease_end, lease, now)
  local v = commands.try('HMGET', shard.key('worker', worker), 'lag', 'lease') or {}
  local own = tonumber(v[2]) or lease
  return {
    worker = worker, lag = tonumber(v[1]) or 0, age = now - lease_end + own,
    ends = lease_end, heard = lease_end - own, beat = math.ceil(BEAT * own),
  }
end

-- found: flat list of worker, end of its leases. Returns at most `limit` holds, each with its holder, the longest held
-- of a worker first; and the workers of which all holds are among them. Of more the last ones: a job goes to the head of
-- its queue, so what was held longest must come last.
function expired.read(found, limit, lease, now)
  local list, over = {}, {}
  for i = 1, #found, 2 do
    local worker, left = found[i], limit - #list
    if left <= 0 then break end
    local holder, own = read_holder(worker, tonumber(found[i + 1]), lease, now), holds.list(worker)
    holder.blame, holder.is_cut = blame.read(holder, own), #own > left
    for j = math.max(1, #own - left + 1), #own do
      own[j].holder = holder
      list[#list + 1] = own[j]
    end
    if #own > left then break end
    over[#over + 1] = worker
  end
  return list, over
end
