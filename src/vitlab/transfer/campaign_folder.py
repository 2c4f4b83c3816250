"""`CampaignFolder` by the name that the studies know; it goes once they run on `experiments/`."""

from vitlab.experiments.campaign_folder import CampaignFolder as CampaignFolder
