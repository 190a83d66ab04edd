--needs shard commands
--exports groups
-- Groups of queues. Few queues have any, so the shard keeps a list of those that do: a call with
-- many queues asks it once.
groups = {}
local MOST = 1000 -- groups of one queue: an emission makes a job for each in one call

-- Why a queue may not have the group, or nil. Asked before the first write.
function groups.refuse(queue, group)
  local name = shard.key('groups', queue)
  local known = commands.try('SMISMEMBER', name, group) -- nil where somebody else's value stands: emissions are refused then
  if not known or known[1] == 1 or redis.call('SCARD', name) < MOST then return nil end
  return redis.error_reply('GROUPS ' .. queue .. ' has ' .. MOST .. ' groups, which is the most; remove one before you add ' .. group)
end

function groups.add(queue, group)
  redis.call('SADD', shard.root .. ':grouped', queue)
  return commands.try('SADD', shard.key('groups', queue), group)
end
